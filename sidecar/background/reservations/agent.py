"""The built-in agent ``reservations``: at any time, no two sessions hold paths that can mean the same file. Pure.

Its inputs are the commands ``reserve`` and ``release``. The time is that of the command. A command is granted as a
whole or refused as a whole. What a session above holds does not refuse a session: it was started to work there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from sidecar.agents.agent import Output
from sidecar.background.own_agent import OwnAgent
from sidecar.background.reservations.paths import checked, covers, overlap
from streams.event import StreamEvent

NAME: Final = "reservations"

MAX_MINUTES: Final = 480.0
"""How long a reservation lasts at most. A session may reserve again at any time."""

MOST_PATHS: Final = 50
"""How many paths a session may hold in a project."""

MOST_HELD: Final = 1000
"""How many paths may be held in a project."""

MOST_TOLD: Final = 10
"""How many of the reservations that are in the way a refusal names."""

_Word = Annotated[str, Field(max_length=300)]


class Holder(BaseModel):
    """Who gives the agent a command."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    project: Annotated[str, Field(min_length=1, max_length=1000)]
    machine: Annotated[str, Field(min_length=1, max_length=300)]
    session: Annotated[str, Field(min_length=1, max_length=300)]


class Reserve(Holder):
    """The command ``reserve``."""

    paths: Annotated[list[str], Field(min_length=1, max_length=MOST_PATHS)]
    minutes: Annotated[float, Field(gt=0, le=MAX_MINUTES)]
    title: _Word = ""
    why: _Word = ""
    above: Annotated[list[_Word], Field(max_length=50)] = []
    """The sessions that started this one, nearest first."""


class Release(Holder):
    """The command ``release``; without ``paths``, all that the session holds in the project."""

    paths: list[str] = []
    by: _Word = ""
    """Why it is released, if the session did not ask for it."""


@dataclass(slots=True)
class Held:
    """A path that a session holds until a time, in ms since 1970."""

    path: str
    machine: str
    session: str
    title: str
    why: str
    since: int
    until: int
    above: list[str] = field(default_factory=list)

    def is_of(self, holder: Holder) -> bool:
        return (self.machine, self.session) == (holder.machine, holder.session)

    def is_in_line(self, session: str, above: Collection[str]) -> bool:
        """Whether the holder started a session that has these ``above``, or was started by that."""
        return self.session in above or session in self.above


@dataclass(slots=True)
class State:
    """What is held, by project. What has expired stays until the next command, and counts for nobody."""

    projects: dict[str, list[Held]] = field(default_factory=dict)

    def live(self, now: int) -> Iterator[tuple[str, Held]]:
        """What is held now, with its project, in the order in which it was reserved."""
        return ((project, each) for project, held in self.projects.items() for each in held if each.until > now)


class ReservationAgent(OwnAgent[State]):
    """An ``Agent``."""

    def __init__(self) -> None:
        super().__init__(NAME, State)

    # --- deciding ---

    def receive(self, event: StreamEvent) -> list[Output]:
        match event.type:
            case "reserve":
                return [self._reserve(Reserve.model_validate(event.payload), event.ts)]
            case "release":
                return self._release(Release.model_validate(event.payload), event.ts)
        return []

    def _reserve(self, given: Reserve, now: int) -> Output:
        paths = list(dict.fromkeys(map(checked, given.paths)))
        about = {"project": given.project, "machine": given.machine, "session": given.session, "ts": now}
        held = [each for each in self.data.projects.get(given.project, ()) if each.until > now]
        others = [each for each in held if not each.is_of(given) and not each.is_in_line(given.session, given.above)]
        in_way = [{"asked": path, **_told(each)} for path in paths for each in others if overlap(path, each.path)]
        mine = {each.path for each in held if each.is_of(given)}
        wanted = mine.union(paths)
        code = "reserved" if in_way else ""
        if not code and (len(wanted) > MOST_PATHS or len(held) - len(mine) + len(wanted) > MOST_HELD):
            code = "too-many"
        if code:
            refused = {**about, "paths": paths, "code": code, "held": in_way[:MOST_TOLD]}
            return Output("reservation.refused", refused)
        said = {"title": given.title, "why": given.why, "above": given.above}
        until = now + round(given.minutes * 60_000)
        return Output("reservation.granted", {**about, **said, "paths": paths, "until": until})

    def _release(self, given: Release, now: int) -> list[Output]:
        mine = [each.path for each in self.data.projects.get(given.project, ()) if each.is_of(given)]
        wanted = [each for each in mine if not given.paths or any(covers(path, each) for path in given.paths)]
        if not wanted:
            return []
        about = {"project": given.project, "machine": given.machine, "session": given.session, "ts": now}
        return [Output("reservation.released", {**about, "paths": wanted, "by": given.by})]

    # --- remembering ---

    def apply(self, event: StreamEvent) -> None:
        apply(self.data, event)


def apply(state: State, event: StreamEvent) -> None:
    """Fold one event of the agent into a state."""
    given = event.payload
    if event.type not in ("reservation.granted", "reservation.released"):
        return
    for project, held in list(state.projects.items()):
        state.projects[project] = [each for each in held if each.until > given["ts"]]
    who = Holder(**{name: given[name] for name in Holder.model_fields})
    held = state.projects.setdefault(who.project, [])
    since = {each.path: each.since for each in held if each.is_of(who)}
    held[:] = [each for each in held if not (each.is_of(who) and each.path in given["paths"])]
    if event.type == "reservation.granted":
        fields = {name: given[name] for name in ("machine", "session", "title", "why", "until", "above")}
        held += [Held(path=path, since=since.get(path, given["ts"]), **fields) for path in given["paths"]]
    state.projects = {project: held for project, held in state.projects.items() if held}


def _told(held: Held) -> dict[str, Any]:
    return {name: value for name, value in asdict(held).items() if name not in ("since", "above")}
