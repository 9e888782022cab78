"""What the page shows of all homes of a team: each is read as one home is, one after the other. Nothing is changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

from bridge.opencode.link.protocol import RequestError
from sidecar.inspector.data import Data, Question
from sidecar.inspector.together import TOGETHER
from sidecar.read.find_by_id import MISSED, SelectError
from sidecar.read.wording import counted
from streams.errors import StreamError
from streams.log.reader import LogReader

KEPT: Final = frozenset({"sessions", "work"})
"""The requests after every news. Of a home of which nothing is new, the last answer counts."""


PATIENCE_SECONDS: Final = 30.0
"""How long an answer is waited for. Until it comes, other requests wait for it as long."""


class HomeRow(Protocol):
    """A home of the team; ``behind`` of its records cannot be shown yet, and ``state`` differs after every change."""

    @property
    def home(self) -> int: ...
    @property
    def machine(self) -> str: ...
    @property
    def head(self) -> int: ...
    @property
    def behind(self) -> int: ...
    @property
    def state(self) -> list[int]: ...


class Team(Protocol):
    """A connection to the team, which reads the home that it was turned to last. All of it blocks."""

    def homes(self, machine: str | None = None, /) -> list[Any]: ...
    def turn_to(self, home: Any, /) -> None: ...
    def reader(self, home: Any, /) -> LogReader: ...
    def let_go(self) -> None: ...


async def _refused(*_: Any) -> dict[str, Any]:
    raise RequestError("team-only-read", "the page of a team only reads: do this on the machine of the session")


class TeamData:
    """``open_team`` makes a connection; one reads, and one looks for news. Of a team, ``only`` one machine is shown."""

    is_team = True
    look_seconds = 1.0
    act = staticmethod(_refused)

    def __init__(
        self,
        open_team: Callable[[], Team],
        now_ms: Callable[[], int],
        patience: float = PATIENCE_SECONDS,
        only: str | None = None,
    ) -> None:
        self._team, self._news, self._now_ms, self._patience = open_team(), open_team(), now_ms, patience
        self._turn, self._only = asyncio.Lock(), only
        self._data: dict[int, Data] = {}
        self._cached: dict[tuple[str, int], tuple[list[int], Any]] = {}
        self.warnings: dict[str, str | None] = {}

    def head(self) -> Any:
        """See ``Data``; also when the team cannot be read any more, and when it can be again."""
        try:
            return [(each.home, each.state) for each in self._news.homes(self._only)]
        except StreamError as error:
            return error.code

    async def warm(self) -> None:
        """See ``Data``."""
        with suppress(StreamError, SelectError):  # the page says what is wrong
            await self.ask(lambda data: data.sessions(), None, "sessions", {})

    async def ask(self, question: Question, machine: str | None, name: str, given: Mapping[str, str]) -> Any:
        """What all homes of a machine, or of all machines, answer ``TOGETHER``; to another request, what the first one
        answers that has what the question names.

        Raises:
            SelectError: none has it.
            StreamError: the team cannot be read.
            RequestError: it takes too long, or only the home itself has the answer.
        """
        asking = asyncio.ensure_future(self._asked(question, machine, name, given))
        done, _ = await asyncio.wait({asking}, timeout=self._patience)
        if not done:
            asking.add_done_callback(lambda late: late.cancelled() or late.exception())  # nobody asks for it any more
            text = f"the team's Postgres has not answered for {self._patience:.0f} seconds"
            raise RequestError("team-unavailable", text)
        return asking.result()

    async def _asked(self, question: Question, machine: str | None, name: str, given: Mapping[str, str]) -> Any:
        if name == "diff/{name}":
            await _refused()  # only the home has it
        async with self._turn:
            homes = await asyncio.to_thread(self._team.homes, self._only)
            self.warnings = {"log-behind": _behind(homes)}
            found: list[tuple[str, Any]] = []
            homes = [each for each in homes if machine in (None, each.machine)]
            missed = [SelectError("no-log", "the team has no such home yet")] if not homes else []
            try:
                for home in homes:
                    try:
                        found.append((home.machine, await self._answer(home, question, name)))
                    except SelectError as error:
                        if error.code not in MISSED:
                            raise
                        missed.append(error)
                    if found and name not in TOGETHER:
                        return found[0][1]
            finally:
                with suppress(StreamError):  # what failed before counts
                    await asyncio.to_thread(self._team.let_go)
        if not found:
            raise missed[0]
        answer = TOGETHER[name](found, given)
        return answer | {"now": self._now_ms()} if name in KEPT else answer

    async def _answer(self, home: HomeRow, question: Question, name: str) -> Any:
        state, known = self._cached.get((name, home.home), (None, None))
        if state == home.state:
            return known
        await asyncio.to_thread(self._team.turn_to, home)
        if home.home not in self._data:
            reader = self._team.reader(home)
            self._data[home.home] = Data(Path(), reader, self._now_ms, _refused, _refused, home.machine)
        if name == "health":
            return {"records": home.head + 1, "behind": home.behind}
        answer = await question(self._data[home.home])
        if name in KEPT:
            self._cached[name, home.home] = home.state, answer
        return answer


def _behind(homes: list[Any]) -> str | None:
    lacking = [f"{counted(each.behind, 'record')} of {each.machine}" for each in homes if each.behind]
    return f"{', '.join(lacking)} cannot be shown yet" if lacking else None
