"""The built-in agent ``intents``: registers intents, runs each in a phantom session, and tells its result. Pure.

The agent decides, and effects act (``effects.py``). The agent's inputs are commands (``intent.register``,
``intent.cancel``, ``tick``, ``host.ready``), the results of its effects, and what capture records about the sessions
that the agent knows. The agent ``messages`` takes the result from the end of an intent.

An intent's events have its id as ``payload.intent``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from sidecar.agents.agent import Output
from sidecar.background import elsewhere
from sidecar.background.hosts import v2_ids
from sidecar.background.intents import afterwards, budgets, causes, edits, watch
from sidecar.background.intents import intent_effects as asked
from sidecar.background.intents.budgets import Doom, doomed, refusal
from sidecar.background.intents.intent_effects import ABORT, CHECK, COLLECT, CONTINUE, CREATE, ISOLATE, PROMPT
from sidecar.background.intents.lifecycle import ENDED, INTENT, WORKING, after
from sidecar.background.intents.state import Intent, State, intent_of
from sidecar.background.intents.texts import cause_text, notice_text, result_of
from sidecar.background.messages.message import QUESTIONS
from sidecar.background.own_agent import OwnAgent
from sidecar.read.ask_text import on_one_line
from streams.event import StreamEvent

if TYPE_CHECKING:
    from sidecar.config import PhantomConfig

NAME: Final = "intents"

MAX_GIST: Final = 300
"""Length, in characters, of the beginning of a result that the sentence for a person may use."""

MAX_REASON: Final = 500
"""Maximum length of the error that an intent keeps, in characters. The log has the whole error."""

ECHO_MS: Final = 2_000
"""Within this many ms, OpenCode 1 reports the error of a refused prompt twice."""

MAX_RESUMES: Final = 5
"""How many times an intent whose OpenCode died is resumed before it fails."""

MAX_STOPS: Final = 20
"""Maximum number of intents that stop in one step."""

MAX_STOPPED: Final = 60
"""With more outputs than this, an input stops no more intents. The next tick, which follows at once, does."""


class IntentAgent(OwnAgent[State]):
    """An ``Agent``. The agent first decides what an input means, then what may start or must stop."""

    events: Sequence[str] = (
        "turn.ended",
        "execution.step",
        "execution.output",
        "human.input",
        "agent.input",
        "agent.error",
        "lifecycle.session.created",
        "lifecycle.session.ended",
        "message.queued",
        "message.waiting",
        "message.left",
        "message.answered",
        "message.expired",
        "message.withdrawn",
    )

    def __init__(self, limits: PhantomConfig) -> None:
        self._limits, self._silence_ms = limits, round(limits.silence_minutes * 60_000)
        self._check_ms = min(watch.CHECK_MS, self._silence_ms // 2 or watch.CHECK_MS)
        super().__init__(NAME, State)

    def deadline(self) -> int | None:
        """When the agent wants the next ``tick``, in ms UTC."""
        if any(doomed(self.data, self._limits, intent) for intent in self.data.unfinished()):
            return 0
        return min(watch.deadlines(self.data, self._check_ms), default=None)

    # --- deciding ---

    def receive(self, event: StreamEvent) -> list[Output]:
        return causes.in_their_chains(self.data, event, self._decide(event))

    def follow(self, event: StreamEvent, outputs: Sequence[Output]) -> list[Output]:
        if event.type == "execution.step" and budgets.is_last(event):
            return []  # the turn's end follows, and finished work is not stopped because of its cost
        if event.type not in ("tick", "sidecar.started") and not any(output.type in _CHANGES for output in outputs):
            return []
        return causes.in_their_chains(self.data, event, self._follow(len(outputs), event.ts))

    def _follow(self, said: int, ts: int) -> list[Output]:
        """Stop what must stop, or else start what may start, after so many outputs."""
        data, limits = self.data, self._limits
        if said <= MAX_STOPPED:
            stopping = [(each, doom) for each in data.unfinished() if (doom := doomed(data, limits, each))]
            stopped = [output for each, doom in stopping[:MAX_STOPS] for output in self._stop(each, ts, doom)]
            if first := stopped or budgets.warnings(data, limits):
                return first
        for intent in data.intents.values():
            is_next = intent.state == "queued" and not intent.waits and doomed(data, limits, intent) is None
            if is_next and not budgets.full(data, limits, intent):
                return self._start(intent)
        return []

    def _stop(self, intent: Intent, ts: int, doom: Doom) -> list[Output]:
        about = {"reason": doom.reason, "code": doom.code}
        if intent.session is None:
            return self._end(intent, doom.event, ts, **about)
        abort = asked.abort(intent)
        if doom.event == "intent.cancelled":
            return [Output("intent.cancelling", {"intent": intent.id, "ts": ts, **about}), abort]
        return [*self._end(intent, doom.event, ts, **about), abort]

    def _decide(self, event: StreamEvent) -> list[Output]:
        match event.type:
            case "intent.register":
                return self._register(event)
            case "intent.cancel":
                return self._cancel(event)
            case "intent.apply":
                return self._applied(event)
            case "intent.undo":
                return [Output("intent.undone", {"intent": event.payload["intent"], "ts": event.ts})]
            case "intent.resume":
                intent = self.data.intents[event.payload["intent"]]
                hosted = Output("intent.hosted", {**event.payload, "ts": event.ts})
                return [hosted, asked.check(intent, event.ts)] if intent.session is not None else [hosted]
            case "intent.discard":
                return [Output("intent.discarded", {"intent": event.payload["intent"], "ts": event.ts})]
            case "tick":
                return self._tick(event)
            case "sidecar.started":
                return self._resume(event)
            case "host.hung":
                name = event.payload["environment"]
                hung = [each for each in self.data.intents.values() if each.state in WORKING]
                return [Output("intent.hung", {"intent": each.id}) for each in hung if each.environment == name]
            case "host.ready":
                return self._host_ready(event)
            case "effect.completed" | "effect.failed":
                return self._effect_ended(event)
            case "turn.ended":
                return self._turn_ended(event)
            case "execution.step":
                return budgets.spend(self.data, event) + edits.seen(self.data, event)
            case "execution.output":
                return self._output(event)
            case "lifecycle.session.created":
                return self._child(event)
            case "human.input":
                return afterwards.prompted(self.data, event)
            case "agent.input":
                return self._answered_by(event) + afterwards.prompted(self.data, event)
            case "agent.error":
                return self._session_erred(event)
            case "lifecycle.session.ended":
                return self._session_ended(event)
            case "message.queued" | "message.waiting":
                return [*watch.asked(self.data, event), *self._asks_elsewhere(event)]
            case "message.left" | "message.answered" | "message.expired" | "message.withdrawn":
                return watch.answered(self.data, event)
        return []

    def _register(self, event: StreamEvent) -> list[Output]:
        given = event.payload
        if given["intent"] in self.data.intents:
            return []
        above = [self.data.sessions[each] for each in given.get("above", ()) if each in self.data.sessions]
        starter = self.data.intents.get(above[0]) if above else None
        root = starter.root if starter is not None else given.get("root") or given.get("parent") or given["intent"]
        depth = (starter.depth if starter is not None else (given.get("asked_by") or {}).get("depth", 0)) + 1
        about = {key: value for key, value in given.items() if key != "above"}
        payload = {**about, "ts": event.ts, "root": root, "depth": depth, "starter": above[0] if above else None}
        refused = refusal(self.data, self._limits, intent_of(payload))
        other = afterwards.continuing(self.data, (given.get("continues") or {}).get("session") or "-")
        if other is not None:
            refused = {"code": "still-running", "reason": f"{other.id} works in the same session"}
        if refused is not None:
            return [Output("intent.refused", {**payload, **refused})]
        return [Output("intent.created", payload)]

    def _start(self, intent: Intent) -> list[Output]:
        isolates = intent.isolation == "copy"
        isolates |= intent.isolation == "auto" and intent.agent not in self._limits.readers
        if isolates and not intent.copy:
            return [asked.isolate(intent)]
        return [self._create(intent, intent.place, ["intent.starting", {"intent": intent.id}])]

    def _create(self, intent: Intent, directory: str, step: list[Any]) -> Output:
        return asked.create(intent, directory, step, is_child=intent.parent in self.data.sessions)

    def _isolated(self, intent: Intent, error: str, found: Any, ts: int) -> list[Output]:
        """Handle the result of making a copy. Without one, the intent edits the user's files, if it is allowed to."""
        if intent.state != "starting" or intent.session is not None:
            return []
        if not isinstance(found, dict):
            return self._end(intent, "intent.failed", ts, reason=f"no copy: {error}", code="no-copy")
        setup = found.get("setup") or []
        if found.get("failed"):
            return self._end(intent, "intent.failed", ts, reason=found["failed"], code="setup-failed", setup=setup)
        copy = {name: value for name, value in found.items() if name != "setup"}
        isolated = ["intent.isolated", {"intent": intent.id, "copy": copy, "setup": setup}]
        return [self._create(intent, found.get("directory") or intent.directory, isolated)]

    def _cancel(self, event: StreamEvent) -> list[Output]:
        intent = self.data.intents.get(event.payload.get("intent", ""))
        if intent is None or intent.state in ENDED or intent.state in ("cancelling", "finishing"):
            return []
        reason = str(event.payload.get("reason") or "cancelled by the user")
        return self._stop(intent, event.ts, Doom("intent.cancelled", reason, "cancelled"))

    def _applied(self, event: StreamEvent) -> list[Output]:
        intent = self.data.intents.get(event.payload.get("intent", ""))
        if intent is None or intent.applied is not None:
            return []
        return [Output("intent.applied", {"intent": intent.id, "ts": event.ts})]

    def _tick(self, event: StreamEvent) -> list[Output]:
        now = event.payload["now"]
        outputs: list[Output] = []
        for intent, doom in watch.late(self.data, now):
            outputs += self._stop(intent, event.ts, doom)
        ended = {output.payload.get("intent") for output in outputs}
        for intent in watch.due(self.data, now, self._check_ms):
            outputs += [asked.check(intent, event.ts)] if intent.id not in ended else []
        return outputs

    def _resume(self, event: StreamEvent) -> list[Output]:
        """Handle the start of a sidecar: check every session that was at work, and everything that is waiting for a
        host."""
        active = [intent.id for intent in self.data.intents.values() if intent.state not in ENDED]
        outputs = [Output("resume", {"intents": active, "ts": event.ts})] if active else []
        return outputs + [asked.check(intent, event.ts) for intent in watch.checkable(self.data)]

    def _host_ready(self, event: StreamEvent) -> list[Output]:
        sessions = event.payload.get("sessions", ())
        outputs = [asked.check(each, event.ts) for each in watch.checkable(self.data) if each.session in sessions]
        hosted = [each for each in self.data.unfinished() if each.waits]
        hosted = [each for each in hosted if each.environment in event.payload.get("environments", ())]
        return [*outputs, *(Output("intent.hosted", {"intent": each.id, "ts": event.ts}) for each in hosted)]

    def _looked(self, intent: Intent, found: dict[str, Any], ts: int) -> list[Output]:
        """Handle the result of checking a session, unless the log already shows that result.

        A check from before the session's last prompt is ignored.
        """
        assert intent.session is not None
        if intent.state not in WORKING or intent.prompting:
            return []
        if any(found.get(name, value) != value for name, value in watch.noted(intent).items()):
            return []
        doom = watch.alarm(intent, found, self._silence_ms)
        if doom is not None:
            return self._stop(intent, ts, doom)
        match found.get("state"):
            case "busy" if intent.state == "resuming":  # OpenCode continued the session by itself
                return [Output("intent.resumed", {"intent": intent.id, "ts": ts})]
            case "answered":
                about = {"result": result_of(found.get("text"), intent.session)}
                about |= {"left": left} if (left := found.get("left")) else {}
                ended = self._end(intent, "intent.completed", ts, **about)
                return [*ended, asked.abort(intent)] if left and not intent.copy else ended
            case "failed":
                return self._erred(intent, intent.session, intent.fault or found.get("text"), ts)
            case "aborted" | "stopped" as outcome:
                return self._stopped(intent, intent.session, outcome, ts)
            case "unanswered":
                return self._interrupted(intent, intent.session, ts)
            case "unprompted":
                return self._interrupted(intent, intent.session, ts, intent.prompt)
            case "gone":
                return self._end(intent, "intent.failed", ts, reason="its session was deleted", code="deleted")
        return []

    def _effect_ended(self, event: StreamEvent) -> list[Output]:
        kind, node, result = event.payload.get("kind"), event.payload.get("node", ""), event.payload.get("result")
        failed = event.type == "effect.failed"
        intent = self.data.intents.get(node)
        if kind == PROMPT and intent is not None and intent.is_stopped:
            # OpenCode accepted the prompt after the abort or at the same time, so abort the session again.
            is_sent = not failed and not (isinstance(result, dict) and result.get("absent"))
            return [asked.abort(intent, is_late=True)] if is_sent else []
        if intent is None or intent.state in ENDED:
            if kind == ISOLATE and isinstance(result, dict) and result.get("root"):
                return [asked.collect(node, result, session=None, stop=False)]
            return []
        error = str(event.payload.get("error", ""))
        if kind == COLLECT or intent.state == "finishing":
            changes = {"error": error} if failed else result
            return self._finished(intent, changes, event.ts) if kind == COLLECT else []
        if kind in (ISOLATE, CREATE) and isinstance(result, dict) and result.get("absent"):
            return [Output("intent.unhosted", {"intent": intent.id, "ts": event.ts})]
        if kind == ISOLATE:
            return self._isolated(intent, error, None if failed else result, event.ts)
        if kind == CHECK:
            return [] if failed or not isinstance(result, dict) else self._looked(intent, result, event.ts)
        if kind == CREATE:
            if failed or not isinstance(result, dict):
                return self._end(intent, "intent.failed", event.ts, reason=f"not started: {error}", code="no-session")
            if why := result.get("missing"):
                return self._end(intent, "intent.failed", event.ts, reason=why, code="plugin-missing")
            session = str(result["session"])
            started = Output(
                "intent.started",
                {
                    "intent": intent.id,
                    "session": session,
                    "parent": intent.parent,
                    "child": intent.parent in self.data.sessions,
                    "title": intent.title,
                    "directory": intent.directory,
                    "ts": event.ts,
                },
            )
            return [started, asked.prompt(intent, session, intent.prompt)]
        if kind == PROMPT and failed:
            return self._end(intent, "intent.failed", event.ts, reason=f"not prompted: {error}", code="no-prompt")
        if kind == PROMPT and isinstance(result, dict) and result.get("absent"):
            about = {"intent": intent.id, "ts": event.ts}
            if intent.state == "resuming":
                return [Output("intent.waiting", about)]
            # The check sends the first prompt again if it finds none. An OpenCode may have come back just now.
            return [Output("intent.interrupted", about), Output("intent.waiting", about), asked.check(intent, event.ts)]
        if kind == PROMPT:
            type_ = "intent.resumed" if intent.state == "resuming" else "intent.prompted"
            # An earlier sidecar may have sent the prompt, and its turn may have ended since, so look at the session.
            is_old = isinstance(result, dict) and result.get("present")
            prompted = Output(type_, {"intent": intent.id, "ts": event.ts})
            return [prompted, asked.check(intent, event.ts)] if is_old else [prompted]
        if kind == ABORT and intent.state == "cancelling":
            return self._end(intent, "intent.cancelled", event.ts, reason=intent.reason, code=intent.code)
        return []

    def _turn_ended(self, event: StreamEvent) -> list[Output]:
        session, outcome = str(event.payload.get("session")), event.payload.get("outcome")
        intent = self.data.intents.get(self.data.sessions.get(session, ""))
        if intent is None or intent.state in ENDED or intent.state == "finishing" or outcome == "continued":
            return []
        if intent.state == "cancelling":
            return self._end(intent, "intent.cancelled", event.ts, reason=intent.reason, code=intent.code)
        if outcome != "interrupted" and v2_ids.is_phantom(session):
            # Other turns of the session end, too, and a turn may leave subagents running, or go on after a refusal. The
            # service knows which turn answers the prompt, and whether the work is over.
            return [asked.check(intent, event.ts)]
        if outcome == "completed":
            # The OpenCode that died may have taken the answer along, so its session says what it answered.
            is_heard = intent.is_answered and intent.result
            return self._end(intent, "intent.completed", event.ts) if is_heard else [asked.check(intent, event.ts)]
        if outcome == "interrupted":
            return self._interrupted(intent, session, event.ts)
        if outcome == "failed":
            return self._erred(intent, session, intent.fault or event.payload.get("error"), event.ts)
        return self._stopped(intent, session, str(outcome), event.ts)

    def _stopped(self, intent: Intent, session: str, outcome: str, ts: int) -> list[Output]:
        """Fail an intent because a person aborted its turn (``aborted``), or refused what the turn asked."""
        reason, code = ("stopped by a person", "user-abort") if outcome == "aborted" else (outcome, "stopped")
        ended = self._end(intent, "intent.failed", ts, reason=reason, code=code)
        # OpenCode 2 continues a refused turn after its next restart, unless the turn is closed.
        return [*ended, asked.abort(intent)] if outcome != "aborted" and v2_ids.is_phantom(session) else ended

    def _session_erred(self, event: StreamEvent) -> list[Output]:
        """Note an error of a turn, because the turn's end only names its kind. Without a turn, OpenCode has accepted a
        prompt and then refused it, for example because the model is unknown.

        OpenCode reports a refusal twice. The second report may come after the next model was prompted.
        """
        session = str(event.payload.get("session"))
        intent = self.data.intents.get(self.data.sessions.get(session, ""))
        if intent is None or intent.state not in WORKING:
            return []
        if event.payload.get("turn") or event.payload.get("message"):
            return [Output("intent.erred", {"intent": intent.id, "reason": cause_text(event.payload)[:MAX_REASON]})]
        if intent.fell_back is not None and event.ts < intent.fell_back + ECHO_MS:
            return []
        return self._erred(intent, session, cause_text(event.payload), event.ts)

    def _erred(self, intent: Intent, session: str, said: Any, ts: int) -> list[Output]:
        """Let the next model take over after an error; without a next model, fail the intent."""
        if len(intent.models) > 1:
            fallback = Output("intent.fallback", {"intent": intent.id, "from": intent.models[0], "ts": ts})
            args = {**asked.prompt(intent, session, intent.prompt).payload, "model": intent.models[1]}
            return [fallback, asked.effect(PROMPT, intent.id, args)]
        reason = str(said or "unknown error").partition(chr(10))[0][:MAX_REASON]
        return self._end(intent, "intent.failed", ts, reason=reason, code="error")

    def _interrupted(self, intent: Intent, session: str, ts: int, text: str = CONTINUE) -> list[Output]:
        """Prompt the session again, unless a prompt is already on its way or OpenCode has died too often."""
        if intent.state == "resuming" and intent.prompting:
            return []
        if intent.resumes >= MAX_RESUMES:
            reason = f"crash: its OpenCode died {intent.resumes + 1} times"
            return self._end(intent, "intent.failed", ts, reason=reason, code="crash")
        interrupted = Output("intent.interrupted", {"intent": intent.id, "ts": ts})
        return [interrupted, asked.prompt(intent, session, text)]

    def _answered_by(self, event: StreamEvent) -> list[Output]:
        """Remember which model answers a message in a phantom's session, because an OpenCode agent may have its own
        model."""
        intent = self.data.intents.get(self.data.sessions.get(str(event.payload.get("session")), ""))
        known = event.payload.get("model")
        if intent is None or not isinstance(known, dict) or not (known.get("provider") and known.get("model")):
            return []
        model = f"{known['provider']}/{known['model']}"
        return [Output("intent.model", {"intent": intent.id, "model": model})] if model != intent.runs_on else []

    def _asks_elsewhere(self, event: StreamEvent) -> list[Output]:
        """Tell the machine that asked for work, if another one did, what the work asks a person."""
        given, intent = event.payload, self.data.intents.get(str(event.payload.get("intent")))
        if intent is None or given.get("kind") not in QUESTIONS:
            return []
        asked_by = self.data.line(intent)[-1].asked_by
        return [asked.effect(elsewhere.TELL, given["message"], elsewhere.asks(asked_by, given))] if asked_by else []

    def _child(self, event: StreamEvent) -> list[Output]:
        session, parent = str(event.payload.get("session")), str(event.payload.get("parent"))
        intent = self.data.working(parent)
        if intent is None or session in self.data.sessions:
            return []
        return [Output("intent.child", {"intent": intent.id, "session": session})]

    def _output(self, event: StreamEvent) -> list[Output]:
        intent = self.data.intents.get(self.data.sessions.get(str(event.payload.get("session")), ""))
        if intent is None or intent.session is None or event.payload.get("kind") != "text":
            return []
        if intent.state in ENDED or intent.state == "finishing":
            return []
        said = result_of(event.payload.get("text"), intent.session)
        return [Output("intent.output", {"intent": intent.id, "text": said})] if said else []

    def _session_ended(self, event: StreamEvent) -> list[Output]:
        session = str(event.payload.get("session"))
        if session in self.data.spent:
            return [Output("budget.closed", {"root": session})]
        intent = self.data.intents.get(self.data.sessions.get(session, ""))
        if intent is None or intent.state in ENDED or intent.state == "finishing":
            return []
        return self._end(intent, "intent.failed", event.ts, reason="its session was deleted", code="deleted")

    def _end(self, intent: Intent, type_: str, ts: int, **about: Any) -> list[Output]:
        """End an intent: save the changes in its copy, then send the result to its parent."""
        if not intent.copy:
            return self._ended(intent, type_, ts, **about)
        ending = {"intent": intent.id, "type": type_, "about": about, "ts": ts}
        stop = type_ != "intent.completed" or "left" in about
        finishing = ["intent.finishing", ending]
        return [asked.collect(intent.id, intent.copy, finishing, session=intent.session, stop=stop)]

    def _finished(self, intent: Intent, changes: Any, ts: int) -> list[Output]:
        if intent.state != "finishing":
            return []
        return self._ended(intent, intent.ending["type"], ts, **intent.ending["about"], changes=changes)

    def _ended(self, intent: Intent, type_: str, ts: int, **about: Any) -> list[Output]:
        known: dict[str, Any] = {"title": intent.title, "parent": intent.parent, "created": intent.created}
        known |= {"directory": intent.directory, "gist": on_one_line(about.get("result") or intent.result)[:MAX_GIST]}
        child = intent.parent in self.data.sessions
        heir, state = self.data.heir(intent.parent, intent.created), after(INTENT, intent.state, type_)
        # The agent ``messages`` sends the result, and passes on what waits for the session that ends.
        # What another machine asked for, that machine tells.
        known |= {"child": child or bool(intent.asked_by), "ends": intent.session, "heir": heir}
        if heir is not None and state != "cancelled":
            more = any(each.parent == intent.parent and each.id != intent.id for each in self.data.unfinished())
            known["notice"] = {"to": heir, "text": notice_text(intent, state, about), "wake": intent.wake, "more": more}
        end = Output(type_, {"intent": intent.id, "ts": ts, **known, **about})
        if not intent.asked_by or state == "cancelled":
            return [end]
        return [end, asked.effect(elsewhere.TELL, intent.id, elsewhere.ended(intent, state, about))]

    # --- remembering ---

    def apply(self, event: StreamEvent) -> None:
        self.data.fold(event.type, event.payload)
        causes.begin(self.data, event)


_CHANGES: Final = {
    "intent.created",
    "intent.hosted",
    "intent.spent",
    "intent.cancelling",
    "intent.completed",
    "intent.failed",
    "intent.cancelled",
    "intent.fallback",
}
"""Events after which something may start or must stop."""
