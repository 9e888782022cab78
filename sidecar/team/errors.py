"""What can go wrong with the team's Postgres."""

from __future__ import annotations

from typing import ClassVar

from streams.errors import StoreUnavailable


class TeamUnavailable(StoreUnavailable):
    """The team's Postgres cannot be reached, or failed in the middle. Trying again may help."""

    code: ClassVar[str] = "team-unavailable"


class TeamRefused(StoreUnavailable):
    """The team's Postgres has something that this home must not change or cannot read. Somebody must look at it."""

    code: ClassVar[str] = "team-refused"
