"""Answers about all sessions, each made once for a state of the log, however many tabs ask for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from sidecar.read.find_by_id import ask_catalog, still_run
from sidecar.read.story.catalog import Catalog
from sidecar.read.story.reading import behind_text
from streams.log.reader import LogReader


@dataclass(frozen=True, slots=True)
class _Made:
    """An answer; ``processes`` are the OpenCodes that must still run, or a turn in it has ended."""

    value: dict[str, Any]
    processes: list[tuple[int, int]]
    is_whole: bool


class Once:
    """The answers of one log, by their names."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._known: dict[str, tuple[Any, asyncio.Future[_Made]]] = {}

    async def get(self, name: str, make: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        """What ``make`` returns, or returned for the same state of the log. Who asks meanwhile waits for the same."""
        state = self._reader.head, await self._reader.removal()
        known = self._known.get(name)
        if known is None or known[0] != state or _is_over(known[1]):
            known = self._known[name] = state, asyncio.ensure_future(self._made(make))
        return (await asyncio.shield(known[1])).value  # others wait for it, too

    async def _made(self, make: Callable[[], Awaitable[dict[str, Any]]]) -> _Made:
        processes = await ask_catalog(self._reader, Catalog.processes)
        return _Made(await make(), processes, behind_text(self._reader) is None)


def _is_over(making: asyncio.Future[_Made]) -> bool:
    if not making.done():
        return False
    if making.cancelled() or making.exception() is not None:
        return True
    made = making.result()
    return not made.is_whole or not still_run(made.processes)
