"""Requests whose names differ between versions of OpenCode 2, and the name to which each service answers. Pure.

The first name of a request is the name in the released versions, taken from their source; the second name was measured
on preview next-16350. A service knows one of the two names, and answers 404 to the other.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Route(NamedTuple):
    """A method, and a path below the path of a session. ``{}`` stands for the id that the request is about."""

    method: str
    path: str


TITLE: Final = (Route("PATCH", ""), Route("POST", "/rename"))
PENDING: Final = (Route("GET", "/inbox"), Route("GET", "/pending"))
CANCEL_FORM: Final = (Route("DELETE", "/form/{}"), Route("POST", "/form/{}/cancel"))


class Answered:
    """Which name each process of a service answered to, so that the other name is not tried again."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, tuple[Route, ...]], Route] = {}

    def of(self, service: str, names: tuple[Route, ...]) -> tuple[Route, ...]:
        """The names to try, in this order."""
        known = self._known.get((service, names))
        return names if known is None else (known,)

    def note(self, service: str, names: tuple[Route, ...], answered: Route) -> None:
        """Remember that a service answered to this name."""
        self._known[service, names] = answered
