"""What the agent ``intents`` remembers, and how each of its events changes that. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sidecar.background.intents.lifecycle import ENDED, INTENT, after

KEPT_ENDED: Final = 200
"""How many ended intents stay in the state; the log has them all."""

KEPT_ROOTS: Final = 1000
"""How many roots stay in the state, with the sums that they have used, after the intents of these roots were
dropped.
"""

LONGEST_MS: Final = 120_000
"""Running intents are checked more often than this, so a longer gap means that the machine was asleep."""

MOST_EDITED: Final = 200
"""How many edited files of an intent are remembered."""


def some_of(payload: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Those of these fields that a payload has, and that are not null."""
    return {name: payload[name] for name in names if payload.get(name) is not None}


@dataclass(slots=True)
class Spent:
    sessions: int = 0
    tokens: int = 0
    cost: float = 0.0
    ran_ms: int = 0
    warnings: list[str] = field(default_factory=list)
    """The budgets that the root has nearly used up, and for which a warning was recorded."""
    closed: bool = False
    """Whether the root's session was deleted; the root can then start nothing more."""


@dataclass(slots=True)
class Intent:
    """One piece of background work. Times are in ms UTC."""

    id: str
    prompt: str
    title: str
    parent: str | None
    directory: str
    created: int
    state: str = "queued"
    agent: str | None = None
    models: list[str] = field(default_factory=list)
    """The models for the intent, as ``provider/model``. After an error of a provider, the next model takes over. An
    empty list means OpenCode's default."""
    model: str = ""
    """The model that is answering; empty until the session shows which model that is."""
    session: str | None = None
    started: int | None = None
    ended: int | None = None
    reason: str = ""
    code: str = ""
    """Why the intent ended, as a code for programs: ``timeout``, ``crash``, ``budget``, ``cancelled`` and so on."""
    fault: str = ""
    """The newest error in the intent's session since its last prompt, such as ``HTTP 401: invalid key``."""
    root: str = ""
    """The root session that started the intent, at whatever depth; the intent's own id if a person started it."""
    depth: int = 1
    starter: str | None = None
    """The intent whose session started this intent."""
    result: str = ""
    resumes: int = 0
    hangs: int = 0
    """How often its OpenCode hung, and was killed."""
    wall_ms: int = 0
    """How long, in ms, the intent may work; 0: no limit."""
    ran_ms: int = 0
    """How long, in ms, the intent has worked until ``since``."""
    since: int | None = None
    """The time up to which ``ran_ms`` is counted; ``None`` while the intent's time does not count."""
    asks: list[str] = field(default_factory=list)
    """The intent's open checkpoints, and the open checkpoints of everything that the intent started."""
    tokens: int = 0
    cost: float = 0.0
    max_tokens: int = 0
    """How many tokens this intent may use; 0: no limit of its own."""
    max_cost: float = 0.0
    steps: int = 0
    """How many times the intent's own session has called the model for the last prompt."""
    is_answered: bool = False
    """Whether the model call that ended last also ended its turn. Work that may be finished is not stopped because of
    its cost before it is known whether it is."""
    said: str = ""
    """A keyed digest of the prompt, if redaction replaced words in it (see ``unredacted.py``)."""
    environment: str = ""
    """The identity in which OpenCode 1 must do the work; empty for OpenCode 2."""
    waits: str = ""
    """``environment`` while no OpenCode with the intent's environment is known, so that the intent cannot start."""
    rights: dict[str, Any] = field(default_factory=dict)
    """What the session that asked for the work may do (see ``rights.py``), until the intent has a session of its own;
    empty if a person asked."""
    prompting: bool = False
    """True while a prompt is on its way to the intent's session. Meanwhile, an idle session does not mean that the
    model has answered."""
    fell_back: int | None = None
    """The time when the next model took over."""
    checked: int | None = None
    """The time when the intent's session was last checked."""
    isolation: str = "shared"
    """``copy``: the intent edits its own copy of the project; ``shared``: the intent edits ``directory``; ``auto``: a
    copy if there is a git repository and the agent may write files, otherwise shared."""
    copy: dict[str, Any] = field(default_factory=dict)
    """The intent's copy; see ``work.Copy``."""
    continues: dict[str, Any] = field(default_factory=dict)
    """The ended work that the intent continues in the same session and copy: ``intent``, ``session``, ``copy``,
    ``saved`` (whether it has changes that the user has not applied) and ``kept`` (whether the copy was). Or empty."""
    setup: list[dict[str, Any]] = field(default_factory=list)
    """What the commands did that made the copy ready; see ``Setup.run``."""
    ending: dict[str, Any] = field(default_factory=dict)
    """How the intent will end once its changes are saved: ``type`` and ``about``."""
    changes: dict[str, Any] = field(default_factory=dict)
    """What the intent changed in its copy; see ``Copies.collect``. Or ``error``: why it could not be saved."""
    wake: bool = True
    """Whether the parent's model should answer the message with the result."""
    applied: int | None = None
    """The time when a person applied the intent's changes."""
    call: str = ""
    """The tool call that asked for the intent; empty if no model asked."""
    turn: str = ""
    """The user message that the turn of that call answers; empty if unknown."""
    cause: str = ""
    """The event with which the intent began, and its ``traceparent`` in ``trace``. They are the cause and the trace of
    everything that belongs to the intent."""
    trace: str = ""
    discarded: int | None = None
    """The time when a person discarded the intent's changes and copy."""
    edited: list[str] = field(default_factory=list)
    """The user's files that the intent edited, at most ``MOST_EDITED``; empty if the intent has a copy."""
    asked_by: dict[str, Any] = field(default_factory=dict)
    """Who asked for the intent, if another machine did: its name as ``machine``, its request as ``ask``, what it calls
    this machine as ``on``, and how many pieces of work led to the session that asked as ``depth``. Else empty."""
    overlaps: dict[str, str] = field(default_factory=dict)
    """Maps each edited file that another agent also changed in the meantime to that agent's intent or session."""

    @property
    def place(self) -> str:
        return self.copy.get("directory") or self.directory

    @property
    def runs_on(self) -> str:
        """The intent's model as ``provider/model``; empty while only OpenCode knows the model."""
        return self.model or (self.models[0] if self.models else "")

    @property
    def works(self) -> bool:
        """Whether the intent's session is working, and not waiting for an OpenCode or for a person."""
        return self.state == "running" and not self.prompting and not self.asks

    @property
    def is_stopped(self) -> bool:
        """Whether the intent's session must no longer work, because the intent was cancelled or has failed."""
        ending = self.state == "finishing" and self.ending["type"] != "intent.completed"
        return ending or self.state in ("cancelling", "cancelled", "failed")

    def ran(self, now: int) -> int:
        return self.ran_ms if self.since is None else self.ran_ms + min(max(now - self.since, 0), LONGEST_MS)


@dataclass(slots=True)
class State:
    intents: dict[str, Intent] = field(default_factory=dict)
    sessions: dict[str, str] = field(default_factory=dict)
    """Maps a phantom session to its intent."""
    children: dict[str, str] = field(default_factory=dict)
    """Maps a session that OpenCode's own task tool started in a phantom, at any depth, to the phantom's intent."""
    spent: dict[str, Spent] = field(default_factory=dict)
    """What each root has used."""

    # --- asking ---

    def unfinished(self) -> list[Intent]:
        return [intent for intent in self.intents.values() if intent.state not in ENDED]

    def working(self, session: str) -> Intent | None:
        """The intent that a session works for. The session is the phantom itself, or was started by the phantom's task
        tool."""
        return self.intents.get(self.sessions.get(session) or self.children.get(session, ""))

    def line(self, intent: Intent) -> list[Intent]:
        """An intent, the intent that started it, and so on, up to the first intent."""
        found: list[Intent] = []
        above: Intent | None = intent
        while above is not None and above not in found:
            found.append(above)
            above = self.intents.get(above.starter or "")
        return found

    def heir(self, session: str | None, asked: int) -> str | None:
        """The session that gets a result: the one that asked for it then. If its own work ended meanwhile, it is the
        one above."""
        while (above := self.intents.get(self.sessions.get(session or "", ""))) is not None:
            if above.ended is None or above.ended < asked:  # a person asked in the session of ended work
                break
            session = above.parent
        return session

    # --- remembering ---

    def fold(self, type_: str, payload: Mapping[str, Any]) -> None:
        for step, about in steps_of(type_, payload):
            self._fold(step, about)

    def _fold(self, type_: str, payload: Mapping[str, Any]) -> None:
        if type_ in ("intent.created", "intent.refused"):
            self._add(type_, payload)
        elif type_ == "budget.warning":
            self.spent[payload["root"]].warnings.append(payload["what"])
        elif type_ == "budget.closed":
            self.spent[payload["root"]].closed = True
        elif type_ == "resume":
            self._resume(payload)
        elif type_ in ("intent.paused", "intent.continued"):
            self._pause(type_, payload)
        elif type_.startswith("intent."):
            self._change_intent(type_, payload)

    def _add(self, type_: str, payload: Mapping[str, Any]) -> None:
        intent = intent_of(payload)
        self.intents[intent.id] = intent
        if type_ == "intent.refused":
            intent.state, intent.ended = "refused", intent.created
            intent.reason, intent.code = payload["reason"], payload["code"]
        else:
            # Move the root to the end of the dict, so that the root that was used last is forgotten last.
            self.spent[intent.root] = spent = self.spent.pop(intent.root, None) or Spent()
            spent.sessions += 1
        self._tidy()

    def _resume(self, payload: Mapping[str, Any]) -> None:
        """Handle the start of a sidecar. The time before does not count, because no sidecar was running."""
        for intent in self.unfinished():
            intent.since = payload.get("ts") if intent.since is not None else None

    def _pause(self, type_: str, payload: Mapping[str, Any]) -> None:
        checkpoint = payload["checkpoint"]
        if type_ == "intent.paused":
            intent = self.intents.get(payload["intent"])
            waiting = self.line(intent) if intent is not None else []
            for each in waiting:
                each.asks.append(checkpoint)
        else:
            waiting = [each for each in self.intents.values() if checkpoint in each.asks]
            for each in waiting:
                each.asks.remove(checkpoint)
        for each in waiting:
            self._count(each, payload["ts"])

    def _count(self, intent: Intent, now: int) -> None:
        """Add the time that has passed since the intent's time was last counted."""
        added = intent.ran(now) - intent.ran_ms
        intent.ran_ms += added
        if (spent := self.spent.get(intent.root)) is not None:
            spent.ran_ms += added
        intent.since = max(now, intent.since or now) if intent.works else None

    def _change_intent(self, type_: str, payload: Mapping[str, Any]) -> None:
        intent = self.intents.get(payload["intent"])
        if intent is None:
            return
        intent.state = after(INTENT, intent.state, type_)
        intent.reason = payload.get("reason", intent.reason)
        intent.code = payload.get("code", intent.code)
        intent.result = str(payload.get("result") or intent.result)
        intent.changes = dict(payload.get("changes") or intent.changes)
        intent.setup = list(payload.get("setup") or intent.setup)
        intent.tokens += payload.get("tokens", 0)
        intent.cost += payload.get("cost", 0.0)
        intent.steps += payload.get("steps", 0)
        if (spent := self.spent.get(intent.root)) is not None:
            spent.tokens += payload.get("tokens", 0)
            spent.cost += payload.get("cost", 0.0)
        if type_ == "intent.started":
            intent.session, intent.started, intent.prompting = payload["session"], payload["ts"], True
            intent.rights = {}
            self.sessions[payload["session"]] = intent.id
            self.children.pop(payload["session"], None)
        elif type_ == "intent.unhosted":
            intent.waits = "environment"
        elif type_ == "intent.hosted":
            intent.waits = ""
            intent.environment = payload.get("environment", intent.environment)
        elif type_ == "intent.isolated":
            intent.copy = dict(payload["copy"])
            intent.isolation = "copy" if intent.copy else "shared"
        elif type_ == "intent.finishing":
            intent.ending = {"type": payload["type"], "about": dict(payload["about"])}
        elif type_ == "intent.applied":
            intent.applied = payload["ts"]
        elif type_ == "intent.undone":
            intent.applied = None
        elif type_ == "intent.discarded":
            intent.discarded = payload["ts"]
            gone = ("saved", "kept", "unsaved", "unsaved_count", "error")
            intent.changes = {name: value for name, value in intent.changes.items() if name not in gone}
        elif type_ == "intent.edited":
            intent.edited += payload["files"]
        elif type_ == "intent.overlap":
            intent.overlaps[payload["file"]] = payload["by"]
        elif type_ == "intent.child":
            self.children[payload["session"]] = intent.id
        elif type_ == "intent.output":
            intent.result = payload["text"]
        elif type_ == "intent.interrupted":
            intent.resumes, intent.prompting, intent.fault = intent.resumes + 1, True, ""
        elif type_ == "intent.hung":
            intent.hangs += 1
        elif type_ == "intent.spent":
            intent.is_answered = bool(payload.get("last"))
        elif type_ in ("intent.prompted", "intent.resumed"):
            intent.steps = 0
            intent.prompting = intent.is_answered = False
        elif type_ == "intent.waiting":
            intent.prompting, intent.resumes = False, intent.resumes - 1
        elif type_ == "intent.model":
            intent.model = payload["model"]
        elif type_ == "intent.erred":
            intent.fault = payload["reason"]
        elif type_ == "intent.checked":
            intent.checked = payload["ts"]
        elif type_ == "intent.fallback":
            intent.models, intent.model, intent.prompting = intent.models[1:], "", True
            intent.fell_back, intent.fault = payload.get("ts"), ""
        if intent.state in ENDED and intent.ended is None:
            intent.ended = payload["ts"]
            for above in self.line(intent)[1:]:
                above.asks = [each for each in above.asks if each not in intent.asks]
                self._count(above, payload["ts"])
        if "ts" in payload:
            self._count(intent, payload["ts"])

    def _tidy(self) -> None:
        ended = [i.id for i in self.intents.values() if i.state in ENDED]
        for old in ended[: max(len(ended) - KEPT_ENDED, 0)]:
            session = self.intents.pop(old).session or ""
            if self.sessions.get(session) == old:  # otherwise, later work continues the session
                del self.sessions[session]
            self.children = {child: of for child, of in self.children.items() if of != old}
        roots = {intent.root for intent in self.intents.values()}
        idle = [root for root in self.spent if root not in roots]
        for number, root in enumerate(idle):
            # A root that is itself an intent has ended and can start nothing more, so its spending no longer matters.
            if self.spent[root].closed or root.startswith("int_") or number < len(idle) - KEPT_ROOTS:
                del self.spent[root]


def steps_of(type_: str, payload: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The steps of intents that an event of the agent is: types with their payloads. The request of an
    effect says which steps go with it.
    """
    yield type_, payload
    args = payload.get("args")
    yield from args.get("steps", ()) if isinstance(args, dict) else ()


def intent_of(payload: Mapping[str, Any]) -> Intent:
    root = payload.get("root") or payload.get("parent") or payload["intent"]
    given = {"parent": None, **some_of(payload, *_REGISTERED)}
    return Intent(id=payload["intent"], created=payload["ts"], root=root, **given)


_REGISTERED: Final = (
    *("prompt", "title", "parent", "directory", "agent", "models", "wall_ms", "max_tokens", "max_cost"),
    *("rights", "environment", "said", "call", "turn", "depth", "starter", "isolation", "wake", "continues"),
    "asked_by",
)
