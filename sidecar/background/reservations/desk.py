"""Where sessions of this machine reserve and release, and hear what others hold: the tools, and the plugins' copy.

The agent decides. What it holds is pushed to all plugins, which warn before an edit without asking anybody.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final, Protocol

from pydantic import Field

from bridge.opencode.capture.state import CaptureState
from bridge.opencode.link.protocol import RequestError
from sidecar.agents.deciding import Handled
from sidecar.agents.engine import Engine
from sidecar.background.intents.lifecycle import ENDED
from sidecar.background.intents.works import Works
from sidecar.background.messages.wording import inline
from sidecar.background.reservations.agent import NAME, Held, ReservationAgent, State
from sidecar.background.reservations.paths import BadPath, folded, shown
from sidecar.background.reservations.project import Project, path_in, project_of
from sidecar.background.tools import ReleaseArgs, ReserveArgs
from sidecar.link.links import ShimConnection
from sidecar.read.wording import local_time
from sidecar.registry import Args
from streams.bus.command import Command
from streams.errors import CodedError, StoreUnavailable
from streams.identity import Identity

log = logging.getLogger("sidecar.background")

ANSWER_SECONDS: Final = 10.0
"""How long a call waits for the log that has the reservations."""

LOOK_SECONDS: Final = 0.25

FRESH_SECONDS: Final = 60.0
"""How long it is remembered which project a directory belongs to."""

MOST_PUSHED: Final = 200
"""How many reservations a plugin knows; the newest."""

MOST_PLACES: Final = 500

_TITLE: Final = 80


class Commanded(Protocol):
    """A runtime, or what stands for one that may be away."""

    @property
    def engines(self) -> Mapping[str, Engine]:
        """The engines that run now, by agent."""
        ...

    async def command(self, agent: str, command: Command) -> Handled:
        """See ``Runtime``."""
        ...


class FreeArgs(Args):
    session: str = Field(min_length=1, max_length=300, description="the beginning of its id")


class Desk:
    """``copies`` is the folder with all private copies. ``runtime`` returns what runs the ``agent``. ``changed`` is
    called when ``context`` changed. With ``refuses``, an edit of another session's path fails.
    """

    def __init__(
        self,
        machine: str,
        copies: str,
        works: Works,
        state: CaptureState,
        identity: Identity,
        runtime: Callable[[], Commanded],
        agent: ReservationAgent,
        links: Callable[[], Sequence[ShimConnection]],
        *,
        refuses: bool = False,
    ) -> None:
        self._machine, self._copies = machine, copies
        self._works, self._state, self._identity = works, state, identity
        self._runtime, self._agent, self._links, self._refuses = runtime, agent, links, refuses
        self._last = State()
        self.changed: Callable[[], None] = lambda: None
        self._pushed: list[dict[str, Any]] = []
        self._places: dict[str, tuple[float, Project]] = {}
        self._failed, self._pushing = "", asyncio.Lock()

    def _held(self) -> State:
        """The agent's state, as far as this machine knows it; while it is read again, what it was before."""
        engine = self._runtime().engines.get(NAME)
        if engine is not None and engine.is_whole:
            self._last = self._agent.data
        return self._last

    # --- the tools ---

    async def reserve(self, session: str, directory: str, args: ReserveArgs) -> str:
        """Reserve paths for a session that works in ``directory``; returns a sentence for the model. A call that comes
        again reserves the same again.

        Raises:
            RequestError: a path is not in the project, or the log that has the reservations did not answer.
            InputRefused, AgentFailed, StreamError: nothing is reserved.
        """
        project = await self._project(session, directory)
        paths = await asyncio.to_thread(_paths, project.root, directory, args.paths)
        _, *above = self._above(session)
        about = {"paths": paths, "minutes": args.minutes, "why": inline(args.why, _TITLE), "above": above[:50]}
        given = (await self._send(session, project.key, "reserve", {**about, "title": self._title(session)}))[0]
        if "until" in given:
            return f"Reserved until {_time(given['until'])}: {', '.join(map(shown, paths))}."
        if given["code"] != "reserved":
            return "Nothing is reserved (too-many): release what you do not need, or name folders instead of files."
        return f"Not reserved: {'; '.join(self._told(each) for each in given['held'])}: split the work or wait."

    async def release(self, session: str, directory: str, args: ReleaseArgs) -> str:
        """Release what a session holds; returns a sentence for the model. Raises what ``reserve`` raises."""
        project = await self._project(session, directory)
        paths = await asyncio.to_thread(_paths, project.root, directory, args.paths)
        found = await self._send(session, project.key, "release", {"paths": paths})
        gone = [path for each in found for path in each["paths"]]
        return f"Released: {', '.join(map(shown, gone))}." if gone else "Nothing of yours is reserved there."

    async def _send(self, session: str, project: str, type_: str, about: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Give the agent a command of a session here; the payloads of what follows from it."""
        who = {"project": project, "machine": self._machine, "session": session}
        command = Command(self._identity.ulid(), type_, {**who, **about}, actor="agent", sender="sidecar")
        try:
            found = await self._command(command)
        except StoreUnavailable as error:
            raise RequestError(error.code, f"nothing is {type_}d: {error}; go on without, or try again later") from None
        await self.push()
        return found

    async def _command(self, command: Command) -> list[dict[str, Any]]:
        try:
            handled = await asyncio.wait_for(self._runtime().command(NAME, command), ANSWER_SECONDS)
        except TimeoutError:
            why = "the log that has the reservations does not answer; go on without, or try again later"
            raise RequestError("reservations-unavailable", why) from None
        return [record.event.payload for record in handled.records[1:]]

    def _told(self, given: Mapping[str, Any]) -> str:
        """Who holds a path, why and until when."""
        title, why = inline(given["title"], _TITLE), inline(given["why"], _TITLE)
        who = f"‘{title}’" if title else inline(given["session"], _TITLE)
        on = f" on {inline(given['machine'], _TITLE)}" if given["machine"] != self._machine else ""
        reason = f" ({why})" if why else ""
        return f"{inline(shown(given['path']))} is reserved by {who}{on}{reason} until {_time(given['until'])}"

    def _title(self, session: str) -> str:
        intent, known = self._works.intent(session), self._state.sessions.get(session)
        return inline((intent.title if intent is not None else known.title if known is not None else "") or "", _TITLE)

    # --- what a person sees ---

    def rows(self) -> list[dict[str, Any]]:
        """What is held now: ``project``, and the fields of ``Held``; ``path`` as a person writes it."""
        if not self._held().projects:
            return []
        live = self._held().live(self._identity.now_ms())
        return [{"project": project, **asdict(each), "path": shown(each.path)} for project, each in live]

    async def free(self, args: FreeArgs) -> dict[str, Any]:
        """Release all that a session of any machine holds, as a person; returns what it held, as ``reservations``.

        Raises:
            RequestError: no session that holds something has an id that begins like this.
            InputRefused, AgentFailed, StreamError: see ``Runtime.command``.
        """
        rows = [each for each in self.rows() if each["session"].startswith(args.session)]
        named = f"has an id that begins with {args.session[:60]!a}; see `durable-stream reservations`"
        if not rows:
            raise RequestError("no-reservation", f"no session that holds something {named}")
        if len({each["session"] for each in rows}) > 1:
            raise RequestError("ambiguous", f"more than one session that holds something {named}")
        for project, machine, whose in {(each["project"], each["machine"], each["session"]) for each in rows}:
            payload = {"project": project, "machine": machine, "session": whose, "by": "user"}
            await self._command(Command(self._identity.ulid(), "release", payload))
        await self.push()
        return {"reservations": rows}

    # --- time ---

    async def keep(self) -> None:
        """Again and again, until this is cancelled: push what changed, and release what sessions held that have ended.
        A log that does not answer keeps only this waiting.
        """
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self.keep_time()
            except CodedError as error:
                log.error("plugins may not know what is reserved: %s", error)

    async def keep_time(self) -> None:
        if self._held().projects or self._pushed:
            await self.push()
            await self._release_ended()

    async def _release_ended(self) -> None:
        live = list(self._held().live(self._identity.now_ms()))
        ended = {
            (project, each.session): why
            for project, each in live
            if each.machine == self._machine and (why := self._over(each))
        }
        for (project, session), why in ended.items():
            payload = {"project": project, "machine": self._machine, "session": session, "by": why}
            try:
                await self._command(Command(self._identity.ulid(), "release", payload, sender="sidecar"))
                self._failed = ""
            except (CodedError, RequestError) as error:
                if self._failed != str(error):
                    log.warning("what %s held is not released yet, which is tried again: %s", session, error)
                self._failed = str(error)
                return
        if ended:
            await self.push()

    def _over(self, held: Held) -> str:
        """Why the holder has ended; empty if it has not. A session that is only closed may go on."""
        intent, known = self._works.intent(held.session), self._state.sessions.look(held.session)
        if intent is not None:
            return f"the work is {intent.state}" if intent.state in ENDED else ""
        if known is None or known.ended:
            return "the session is gone" if known is not None else ""
        is_idle = known.turn is None and known.last_turn is not None and known.last_turn.last_ms >= held.since
        return "the subagent has ended" if known.parent is not None and is_idle else ""

    # --- the plugins' copy ---

    def context(self) -> dict[str, Any]:
        """What the plugins know: of each reservation the ``roots`` of its project's clones here, its ``path`` as
        ``folded`` gives it, ``until``, the sessions that may edit there (``free``), and a ``text`` for the others.
        What is below ``copies`` is a copy of what it is named after.
        """
        return {"reserved": self._pushed, "refuse": self._refuses, "copies": self._copies} if self._pushed else {}

    async def push(self) -> None:
        """Tell all plugins what is held, if that changed."""
        async with self._pushing:
            found = await self._entries() if self._held().projects else []
            if found != self._pushed:
                self._pushed = found
                self.changed()

    async def _entries(self) -> list[dict[str, Any]]:
        live = list(self._held().live(self._identity.now_ms()))
        if not live:
            return []
        sessions = list(self._state.busy)
        roots = await self._roots(sessions)
        here = sorted((each for each in live if each[0] in roots), key=lambda each: each[1].since)
        above = {session: self._above(session) for session in sessions}
        return [
            {
                "roots": roots[project],
                "path": folded(each.path),
                "until": each.until,
                "free": self._free(each, above),
                "text": self._told(asdict(each)),
            }
            for project, each in here[-MOST_PUSHED:]
        ]

    def _above(self, session: str) -> list[str]:
        """A session and those that it works for, nearest first; the last one may be another machine's."""
        return list(filter(None, [*self._works.above(session), self._works.above_elsewhere(session)]))

    def _free(self, held: Held, above: Mapping[str, Sequence[str]]) -> list[str]:
        own = [held.session] if held.machine == self._machine else []
        return sorted({*own, *(session for session, those in above.items() if held.session in those)})

    async def _roots(self, sessions: Iterable[str]) -> dict[str, list[str]]:
        """The roots of the clones in which the sessions, and all linked OpenCodes, are, by project."""
        known = (self._state.sessions.look(session) for session in sessions)
        places = {(each.id, each.directory or "") for each in known if each is not None}
        places |= {("", link.directory or "") for link in self._links()}
        found: dict[str, set[str]] = {}
        for session, directory in places:
            if directory:
                project = await self._project(session, directory, fresh=False)
                found.setdefault(project.key, set()).add(project.root)
                if (intent := self._works.intent(session)) is not None and intent.copy.get("top"):
                    found[project.key].add((await self._place(intent.copy["top"], fresh=False)).root)
        return {key: sorted(roots) for key, roots in found.items()}

    async def _project(self, session: str, directory: str, *, fresh: bool = True) -> Project:
        """The project of a session in a directory. A private copy belongs to the project that was copied."""
        intent = self._works.intent(session)
        copy = intent.copy if intent is not None else {}
        if copy.get("root") and copy.get("top"):
            return (await self._place(copy["top"], fresh=fresh))._replace(root=copy["root"])
        return await self._place(directory, fresh=fresh)

    async def _place(self, directory: str, *, fresh: bool) -> Project:
        now = asyncio.get_running_loop().time()
        since, known = self._places.get(directory, (0.0, None))
        if known is None or fresh or now - since > FRESH_SECONDS:
            if len(self._places) >= MOST_PLACES:
                self._places.clear()
            known = await asyncio.to_thread(project_of, directory, self._machine)
            self._places[directory] = (now, known)
        return known


def _paths(root: str, directory: str, given: Sequence[str]) -> list[str]:
    try:
        return [path_in(root, directory, each) for each in given]
    except BadPath as error:
        raise RequestError(error.code, str(error)) from None


def _time(ms: int) -> str:
    return local_time(ms, "%H:%M")
