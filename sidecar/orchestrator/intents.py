"""The built-in agent ``intents``: registers intents, runs each in a phantom session, and tells the parent. Pure.

It decides; effects act (``effects.py``). Its inputs are commands (``intent.register``,
``intent.cancel``, ``notify``, ``tick``, ``host.ready``), the results of its effects, and
what capture records of the sessions that it knows.

An intent's events have the intent's id as their ``payload.intent``; a notice's, ``payload.notice``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final

from pydantic import TypeAdapter

from sidecar.orchestrator.lifecycle import ACTIVE, ENDED, INTENT, NOTICE, after
from sidecar.runtime.agent import READY, HealthStatus, Output
from streams.event import StreamEvent

NAME: Final = "intents"

MAX_RESULT: Final = 16 * 1024
"""Most characters of a result that an intent keeps and a parent is told; the phantom's session has the whole."""

MAX_RESUMES: Final = 5
"""How often an intent whose OpenCode died is resumed before it fails."""

KEPT_ENDED: Final = 200
"""How many ended intents and observed notices stay in the state; the log has them all."""

UNSEEN_MS: Final = 60_000
"""A message that was sent and not observed for this long is looked for, and sent again if it is not there."""

CONTINUE: Final = "The process that ran you ended in the middle of your work. Look at what is done, and continue."

CHECK_MS: Final = 60_000
"""How often a running intent's session is looked at, because the end of its turn may have been lost."""

MAX_STEPS: Final = 300
"""A session that calls the model this often for one prompt is in an endless loop: a stream without a finish reason."""

CREATE, PROMPT, ABORT, WAKE = "opencode.create", "opencode.prompt", "opencode.abort", "opencode.wake"
CHECK = "opencode.check"


@dataclass(slots=True)
class Intent:
    """One piece of background work. ``ts`` fields are ms UTC."""

    id: str
    prompt: str
    title: str
    parent: str | None
    directory: str
    created: int
    state: str = "queued"
    agent: str | None = None
    models: list[str] = field(default_factory=list)
    """What to run it with, ``provider/model``, the next one after a provider's error; empty: OpenCode's default."""
    session: str | None = None
    started: int | None = None
    ended: int | None = None
    reason: str = ""
    result: str = ""
    resumes: int = 0
    wall_ms: int = 0
    """How long it may run; 0: no limit."""
    tokens: int = 0
    cost: float = 0.0
    pid: int | None = None
    """The OpenCode that asked; its environment is the phantom's."""
    checked: int | None = None
    """When its session was last looked at."""


@dataclass(slots=True)
class Notice:
    """One message for a session."""

    id: str
    session: str
    text: str
    state: str = "queued"
    intent: str | None = None
    key: str = ""
    """Marks the message that carries it."""
    sent: int | None = None
    wake: bool = True
    """Whether the model is to answer it."""


@dataclass(slots=True)
class State:
    """Everything that the agent remembers."""

    intents: dict[str, Intent] = field(default_factory=dict)
    notices: dict[str, Notice] = field(default_factory=dict)
    sessions: dict[str, str] = field(default_factory=dict)
    """Phantom session → intent."""
    nudged: dict[str, bool] = field(default_factory=dict)
    """Parents that became idle while a message was on its way."""


_STATE: Final = TypeAdapter(State)


class IntentAgent:
    """An ``Agent``. ``max_running`` phantoms run at a time; others are queued, first come, first served."""

    def __init__(self, max_running: int = 4) -> None:
        self._max_running = max_running
        self.data = State()

    @property
    def name(self) -> str:
        """See ``Agent``."""
        return NAME

    @property
    def events(self) -> tuple[str, ...]:
        """See ``Agent``."""
        return ("turn.ended", "execution.output", "agent.input", "lifecycle.session.ended")

    @property
    def begins_anywhere(self) -> bool:
        """See ``Agent``: it reacts only to what it began itself."""
        return True

    def health(self) -> HealthStatus:
        """See ``Agent``."""
        return READY

    def state(self) -> dict[str, Any]:
        """See ``Agent``."""
        dumped: dict[str, Any] = _STATE.dump_python(self.data, mode="json")
        return dumped

    def load(self, state: dict[str, Any] | None) -> None:
        """See ``Agent``."""
        self.data = State() if state is None else _STATE.validate_python(state)

    def deadline(self) -> int | None:
        """When the agent wants the next ``tick``, in ms UTC."""
        active = [i for i in self.data.intents.values() if i.state in ACTIVE]
        times = [i.started + i.wall_ms for i in active if i.started and i.wall_ms]
        times += [(i.checked or i.started) + CHECK_MS for i in self._checkable() if i.started]
        times += [n.sent + UNSEEN_MS for n in self.data.notices.values() if n.state == "sent" and n.sent is not None]
        return min(times, default=None)

    # --- deciding ---

    def receive(self, event: StreamEvent) -> list[Output]:
        """See ``Agent``."""
        match event.type:
            case "intent.register":
                return self._register(event)
            case "intent.cancel":
                return self._cancel(event)
            case "notify":
                return self._notify(event)
            case "tick":
                return self._tick(event)
            case "resume":
                return self._resume(event)
            case "host.ready":
                return self._host_ready(event)
            case "effect.completed" | "effect.failed":
                return self._effect_ended(event)
            case "turn.ended":
                return self._turn_ended(event)
            case "execution.output":
                return self._output(event)
            case "agent.input":
                return self._input(event)
            case "lifecycle.session.ended":
                return self._session_ended(event)
        return []

    def _register(self, event: StreamEvent) -> list[Output]:
        given = event.payload
        if given["intent"] in self.data.intents:
            return []
        created = Output("intent.created", {**given, "ts": event.ts})
        running = sum(intent.state in ACTIVE for intent in self.data.intents.values())
        if running >= self._max_running:
            return [created]
        intent = _intent(created.payload)
        return [created, *self._start(intent)]

    def _start(self, intent: Intent) -> list[Output]:
        args = {
            "intent": intent.id,
            "title": intent.title,
            "directory": intent.directory,
            "parent": intent.parent,
            "agent": intent.agent,
            "pid": intent.pid,
        }
        return [Output("intent.starting", {"intent": intent.id}), _effect(CREATE, intent.id, args)]

    def _next(self, ended: str) -> list[Output]:
        """Start the oldest queued intent, because ``ended`` gives its place free."""
        running = sum(i.state in ACTIVE and i.id != ended for i in self.data.intents.values())
        queued = [i for i in self.data.intents.values() if i.state == "queued" and i.id != ended]
        return self._start(queued[0]) if queued and running < self._max_running else []

    def _cancel(self, event: StreamEvent) -> list[Output]:
        intent = self.data.intents.get(event.payload.get("intent", ""))
        if intent is None or intent.state in ENDED or intent.state == "cancelling":
            return []
        reason = str(event.payload.get("reason") or "cancelled by the user")
        if intent.session is None:
            return self._end(intent, "intent.cancelled", event.ts, reason=reason)
        return [
            Output("intent.cancelling", {"intent": intent.id, "reason": reason}),
            _effect(ABORT, intent.id, {"session": intent.session, "directory": intent.directory}),
        ]

    def _notify(self, event: StreamEvent) -> list[Output]:
        given = event.payload
        if given["notice"] in self.data.notices:
            return []
        payload = {key: given.get(key) for key in ("notice", "session", "text", "intent")}
        queued = Output("notice.queued", {**payload, "wake": bool(given.get("wake", True))})
        return [queued, *self._deliver(given["session"], also=_notice(queued.payload))]

    def _tick(self, event: StreamEvent) -> list[Output]:
        now = event.payload["now"]
        outputs: list[Output] = []
        for intent in self.data.intents.values():
            late = intent.state in ("running", "resuming", "starting") and intent.started and intent.wall_ms
            if late and intent.started is not None and intent.started + intent.wall_ms <= now:
                reason = f"timeout: it ran for more than {intent.wall_ms // 1000} s"
                outputs += self._end(intent, "intent.failed", event.ts, reason=reason, code="timeout")
                if intent.session is not None:
                    args = {"session": intent.session, "directory": intent.directory}
                    outputs.append(_effect(ABORT, intent.id, args))
        ended = {output.payload.get("intent") for output in outputs}
        for intent in self._checkable():
            if intent.id not in ended and (intent.checked or intent.started or 0) + CHECK_MS <= now:
                outputs += self._check(intent, event.ts)
        for notice in self.data.notices.values():
            if notice.state == "sent" and notice.sent is not None and notice.sent + UNSEEN_MS <= now:
                outputs += [Output("notice.held", {"notice": notice.id, "why": "not seen in the session"})]
        held = {self.data.notices[o.payload["notice"]].session for o in outputs if o.type == "notice.held"}
        for session in sorted(held):
            outputs += self._deliver(session, resent=True)
        return outputs

    def _resume(self, event: StreamEvent) -> list[Output]:
        """A sidecar has started: look at every session that was at work, and at what waits for a host."""
        active = [intent.id for intent in self.data.intents.values() if intent.state not in ENDED]
        outputs = [Output("resume", {"intents": active})] if active else []
        for intent in self._checkable():
            outputs += self._check(intent, event.ts)
        return outputs

    def _checkable(self) -> list[Intent]:
        return [i for i in self.data.intents.values() if i.state == "running" and i.session is not None]

    def _check(self, intent: Intent, ts: int) -> list[Output]:
        args = {
            "session": intent.session,
            "directory": intent.directory,
            "most": MAX_STEPS + 1,
            "resumes": intent.resumes,
        }
        return [Output("intent.checked", {"intent": intent.id, "ts": ts}), _effect(CHECK, intent.id, args)]

    def _looked(self, intent: Intent, found: dict[str, Any], ts: int) -> list[Output]:
        """What a look at a session says, if the log does not say it. A look from before a resume says nothing."""
        assert intent.session is not None
        if intent.state != "running" or found.get("resumes") != intent.resumes:
            return []
        match found.get("state"):
            case "loop":
                args = {"session": intent.session, "directory": intent.directory}
                reason = f"endless loop: it called the model more than {MAX_STEPS} times for one prompt"
                ended = self._end(intent, "intent.failed", ts, reason=reason, code="endless-loop")
                return [*ended, _effect(ABORT, intent.id, args)]
            case "answered":
                said = str(found.get("text") or "")[:MAX_RESULT]
                answer = [Output("intent.output", {"intent": intent.id, "text": said})] if said else []
                return [*answer, *self._end(intent, "intent.completed", ts, result=said)]
            case "unanswered":
                return self._interrupted(intent, intent.session, ts, {})
            case "gone":
                return self._end(intent, "intent.failed", ts, reason="its session was deleted", code="deleted")
        return []

    def _host_ready(self, event: StreamEvent) -> list[Output]:
        """An OpenCode appeared that may host sessions with waiting notices."""
        sessions = {n.session for n in self.data.notices.values() if n.state == "queued"}
        outputs: list[Output] = []
        for session in sorted(sessions & set(event.payload.get("sessions", ()))):
            outputs += self._deliver(session)
        return outputs

    def _effect_ended(self, event: StreamEvent) -> list[Output]:
        kind, node, result = event.payload.get("kind"), event.payload.get("node", ""), event.payload.get("result")
        failed = event.type == "effect.failed"
        if kind == WAKE:
            return self._woken(event, node, {} if failed or not isinstance(result, dict) else result)
        intent = self.data.intents.get(node)
        if intent is None or intent.state in ENDED:
            return []
        error = str(event.payload.get("error", ""))
        if kind == CHECK:
            return [] if failed or not isinstance(result, dict) else self._looked(intent, result, event.ts)
        if kind == CREATE:
            if failed or not isinstance(result, dict):
                return self._end(intent, "intent.failed", event.ts, reason=f"no session: {error}", code="no-session")
            session = str(result["session"])
            started = Output(
                "intent.started",
                {"intent": intent.id, "session": session, "parent": intent.parent, "ts": event.ts},
            )
            return [started, self._prompt(intent, session, intent.prompt)]
        if kind == PROMPT and failed:
            return self._end(intent, "intent.failed", event.ts, reason=f"not prompted: {error}", code="no-prompt")
        if kind == PROMPT and intent.state == "resuming":
            return [Output("intent.resumed", {"intent": intent.id})]
        if kind == ABORT and intent.state == "cancelling":
            return self._end(intent, "intent.cancelled", event.ts, reason=intent.reason or "cancelled")
        return []

    def _prompt(self, intent: Intent, session: str, text: str) -> Output:
        model = intent.models[0] if intent.models else None
        args = {
            "session": session,
            "directory": intent.directory,
            "text": text,
            "agent": intent.agent,
            "model": model,
            "pid": intent.pid,
        }
        return _effect(PROMPT, intent.id, args)

    def _turn_ended(self, event: StreamEvent) -> list[Output]:
        session, outcome = str(event.payload.get("session")), event.payload.get("outcome")
        intent = self.data.intents.get(self.data.sessions.get(session, ""))
        if intent is None:
            mine = [n for n in self.data.notices.values() if n.session == session]
            waiting = [n for n in mine if n.state in ("queued", "sending")]
            if any(n.state == "sending" for n in waiting):
                return [Output("notice.nudged", {"session": session})]
            return self._deliver(session) if waiting else []
        if intent.state in ENDED or outcome == "continued":
            return []
        if intent.state == "cancelling":
            return self._end(intent, "intent.cancelled", event.ts, reason=intent.reason or "cancelled")
        spent = {"tokens": _tokens(event.payload.get("tokens")), "cost": event.payload.get("cost") or 0.0}
        if outcome == "completed":
            return self._end(intent, "intent.completed", event.ts, **spent)
        if outcome == "interrupted":
            return self._interrupted(intent, session, event.ts, spent)
        if outcome == "failed" and len(intent.models) > 1:
            fallback = Output("intent.fallback", {"intent": intent.id, "from": intent.models[0], **spent})
            args = {**self._prompt(intent, session, intent.prompt).payload, "model": intent.models[1]}
            return [fallback, _effect(PROMPT, intent.id, args)]
        said = event.payload.get("error")
        reason = {"aborted": "stopped by a person", "failed": f"error: {said}"}.get(str(outcome), str(outcome))
        code = {"aborted": "user-abort", "failed": "error"}.get(str(outcome), "stopped")
        return self._end(intent, "intent.failed", event.ts, reason=reason, code=code, **spent)

    def _interrupted(self, intent: Intent, session: str, ts: int, spent: dict[str, Any]) -> list[Output]:
        """Prompt the session again, in place, unless that is under way, or its OpenCode died too often."""
        if intent.state == "resuming":
            return []
        if intent.resumes >= MAX_RESUMES:
            reason = f"crash: its OpenCode died {intent.resumes + 1} times"
            return self._end(intent, "intent.failed", ts, reason=reason, code="crash", **spent)
        return [
            Output("intent.interrupted", {"intent": intent.id, **spent}),
            self._prompt(intent, session, CONTINUE),
        ]

    def _output(self, event: StreamEvent) -> list[Output]:
        intent = self.data.intents.get(self.data.sessions.get(str(event.payload.get("session")), ""))
        said = event.payload.get("text")
        if intent is None or event.payload.get("kind") != "text" or not isinstance(said, str) or not said:
            return []
        return [Output("intent.output", {"intent": intent.id, "text": said[:MAX_RESULT]})]

    def _input(self, event: StreamEvent) -> list[Output]:
        """A message in a session that carries one of our keys: that notice has arrived."""
        parts = event.payload.get("parts")
        keys = {
            mark.get("key")
            for part in (parts if isinstance(parts, list) else [])
            if isinstance(part, dict) and isinstance(mark := (part.get("metadata") or {}).get("durable_stream"), dict)
        }
        seen = [n for n in self.data.notices.values() if n.key and n.key in keys and n.state != "observed"]
        return [Output("notice.observed", {"notice": n.id, "message": event.payload.get("message")}) for n in seen]

    def _session_ended(self, event: StreamEvent) -> list[Output]:
        intent = self.data.intents.get(self.data.sessions.get(str(event.payload.get("session")), ""))
        if intent is None or intent.state in ENDED:
            return []
        return self._end(intent, "intent.failed", event.ts, reason="its session was deleted", code="deleted")

    def _end(self, intent: Intent, type_: str, ts: int, **about: Any) -> list[Output]:
        """End an intent, tell its parent, and give its place to the next."""
        known = {"title": intent.title, "parent": intent.parent, "created": intent.created}
        child = intent.parent in self.data.sessions
        ended = Output(type_, {"intent": intent.id, "ts": ts, **known, "child": child, **about})
        outputs = [ended]
        state = after(INTENT, intent.state, type_)
        if intent.parent is not None and state != "cancelled":
            text = _told(intent, state, str(about.get("reason", "")), str(about.get("result") or intent.result))
            notice = {"notice": f"ntc_{intent.id[4:]}", "session": intent.parent, "text": text, "intent": intent.id}
            queued = Output("notice.queued", {**notice, "wake": True})
            outputs += [queued, *self._deliver(intent.parent, also=_notice(queued.payload))]
        return [*outputs, *self._next(intent.id)]

    # --- notices ---

    def _deliver(self, session: str, *, also: Notice | None = None, resent: bool = False) -> list[Output]:
        """Send everything that waits for a session as one message, unless one is on its way."""
        mine = [n for n in self.data.notices.values() if n.session == session]
        if any(n.state == "sending" or (n.state == "sent" and not resent) for n in mine):
            return []
        waiting = [n for n in mine if n.state == "queued" or (resent and n.state == "sent")]
        waiting += [also] if also is not None else []
        if not waiting:
            return []
        key = f"{waiting[0].id}.{len(waiting)}.{waiting[-1].id}"
        outputs = [Output("notice.sending", {"notice": n.id, "key": n.key or key}) for n in waiting]
        # One that was sent before keeps its key, so that it is recognised in the history.
        texts = [{"key": n.key or key, "text": n.text} for n in waiting]
        args = {"session": session, "texts": texts, "wake": any(n.wake for n in waiting)}
        return [*outputs, _effect(WAKE, session, args)]

    def _woken(self, event: StreamEvent, session: str, result: dict[str, Any]) -> list[Output]:
        sending = [n for n in self.data.notices.values() if n.session == session and n.state == "sending"]
        if result.get("status") == "sent":
            return [Output("notice.sent", {"notice": n.id, "ts": event.ts}) for n in sending]
        why = str(result.get("status") or event.payload.get("error", ""))
        held = [Output("notice.held", {"notice": n.id, "why": why}) for n in sending]
        if self.data.nudged.get(session) and held:
            texts = [{"key": n.key, "text": n.text} for n in sending]
            again = [Output("notice.sending", {"notice": n.id, "key": n.key}) for n in sending]
            args = {"session": session, "texts": texts, "wake": any(n.wake for n in sending)}
            return [*held, *again, _effect(WAKE, session, args)]
        return held

    # --- remembering ---

    def apply(self, event: StreamEvent) -> None:
        """See ``Agent``."""
        payload = event.payload
        if event.type == "intent.created":
            intent = _intent(payload)
            self.data.intents[intent.id] = intent
            self._tidy()
        elif event.type == "notice.queued":
            notice = _notice(payload)
            self.data.notices[notice.id] = notice
        elif event.type == "notice.nudged":
            self.data.nudged[payload["session"]] = True
        elif event.type.startswith("intent."):
            self._apply_intent(event.type, payload)
        elif event.type.startswith("notice."):
            self._apply_notice(event.type, payload)

    def _apply_intent(self, type_: str, payload: dict[str, Any]) -> None:
        intent = self.data.intents.get(payload["intent"])
        if intent is None:
            return
        intent.state = after(INTENT, intent.state, type_)
        intent.reason = payload.get("reason", intent.reason)
        intent.tokens += payload.get("tokens", 0)
        intent.cost += payload.get("cost", 0.0)
        if type_ == "intent.started":
            intent.session, intent.started = payload["session"], payload["ts"]
            self.data.sessions[payload["session"]] = intent.id
        elif type_ == "intent.output":
            intent.result = payload["text"]
        elif type_ == "intent.interrupted":
            intent.resumes += 1
        elif type_ == "intent.checked":
            intent.checked = payload["ts"]
        elif type_ == "intent.fallback":
            intent.models = intent.models[1:]
        if intent.state in ENDED and intent.ended is None:
            intent.ended = payload.get("ts")

    def _apply_notice(self, type_: str, payload: dict[str, Any]) -> None:
        notice = self.data.notices.get(payload["notice"])
        if notice is None:
            return
        notice.state = after(NOTICE, notice.state, type_)
        if type_ == "notice.sending":
            notice.key = payload["key"]
            self.data.nudged.pop(notice.session, None)
        elif type_ == "notice.sent":
            notice.sent = payload["ts"]

    def _tidy(self) -> None:
        ended = [i.id for i in self.data.intents.values() if i.state in ENDED]
        for old in ended[: max(len(ended) - KEPT_ENDED, 0)]:
            session = self.data.intents.pop(old).session
            self.data.sessions.pop(session or "", None)
        seen = [n.id for n in self.data.notices.values() if n.state == "observed"]
        for old in seen[: max(len(seen) - KEPT_ENDED, 0)]:
            del self.data.notices[old]


def _effect(kind: str, node: str, args: dict[str, Any]) -> Output:
    return Output("effect.requested", args, effect=kind, node=node)


def _intent(payload: dict[str, Any]) -> Intent:
    return Intent(
        id=payload["intent"],
        prompt=payload["prompt"],
        title=payload["title"],
        parent=payload.get("parent"),
        directory=payload["directory"],
        created=payload["ts"],
        agent=payload.get("agent"),
        models=list(payload.get("models") or ()),
        wall_ms=int(payload.get("wall_ms") or 0),
        pid=payload.get("pid"),
    )


def _notice(payload: dict[str, Any]) -> Notice:
    return Notice(
        payload["notice"],
        payload["session"],
        payload["text"],
        intent=payload.get("intent"),
        wake=payload.get("wake", True),
    )


def _told(intent: Intent, state: str, reason: str, result: str) -> str:
    """What the parent's model reads when an intent ended."""
    head = f'<background-agent id="{intent.id}" state="{state}" title="{intent.title}">'
    body = (result or "(it gave no answer)") if state == "completed" else f"{reason}\n{result}".strip()
    return f"{head}\n{body}\n</background-agent>"


def _tokens(given: Any) -> int:
    if not isinstance(given, dict):
        return 0
    return sum(value for value in given.values() if isinstance(value, int) and not isinstance(value, bool))


def as_row(intent: Intent) -> dict[str, Any]:
    """An intent as ``intents --json`` prints it."""
    return asdict(intent)
