"""Logs whose records stay in the journal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from streams.errors import StoreUnavailable
from streams.stores.sqlite.database import Database


@contextmanager
def nothing_moves() -> Iterator[None]:
    """Meanwhile no log of this process moves a record to its database, not even at its end."""

    def refuse(*_: Any) -> None:
        raise StoreUnavailable("the test holds the database")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Database, "move", refuse)
        yield
