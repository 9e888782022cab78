"""What the translator remembers about a session between two events that lead to records.

This memory is not in the log. After a restart of the sidecar, it is made anew from the service's messages.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bridge.opencode.capture.shapes import BRIEF, mapping, model_of, present, text
from bridge.opencode.capture.v2.event_fields import (
    HostEvent,
    call_id,
    input_id,
    is_abort,
    is_declined,
    message_id,
    read_input,
)
from streams.event import StreamEvent
from streams.lineage import STEP_STARTED

_MOST = 2000


@dataclass(slots=True)
class Call:
    id: str
    message: str | None
    name: str | None = None
    input: Any = None
    started_ms: int | None = None


@dataclass(slots=True)
class Step:
    agent: str | None
    model: dict[str, Any] | None


class Promoted(NamedTuple):
    """An input that was delivered to the model, and when. ``is_prompt`` is false for what OpenCode or a program adds,
    such as the output of a person's command, which is delivered together with the next prompt."""

    message: str
    t: int
    is_prompt: bool


@dataclass(slots=True)
class Memory:
    """The memory of what one process does in one session. ``note`` takes each event after it has been handled."""

    execution: str | None = None
    """The event with which the session became busy; ``None`` while it is idle."""
    is_new: bool = False
    """True from the event in ``execution`` until the first step or compaction, unless a turn is open: then the service
    goes on with that turn after a restart."""
    turn: str | None = None
    """The message of the turn that runs, also if the log has it as ended because its events come a second time."""
    finish: str | None = None
    """How the last step of that turn ended."""
    has_error: bool = False
    """Whether an error of that turn was recorded."""
    waiting: OrderedDict[str, str] = field(default_factory=OrderedDict)
    promoted: list[Promoted] = field(default_factory=list)
    """Inputs that the next step will answer."""
    declined: bool = False
    compaction: str | None = None
    """The message of the compaction that runs, or ran last."""
    ended: Counter[tuple[str | None, str]] = field(default_factory=Counter)
    """How many calls with the same id have ended in a message: a provider may repeat an id, or leave it empty."""
    calls: OrderedDict[tuple[str | None, str], Call] = field(default_factory=OrderedDict)
    begun: OrderedDict[tuple[str, str | None, Any], int] = field(default_factory=OrderedDict)
    steps: OrderedDict[str, Step] = field(default_factory=OrderedDict)

    @classmethod
    def of_calls(cls, begun: Iterable[StreamEvent], ended: Container[str]) -> Memory:
        """The memory of the calls whose records are given; ``ended`` has the keys of their steps, as far as they are
        recorded."""
        memory = cls()
        for event in begun:
            payload = event.payload
            key = text(payload.get("message")), text(payload.get("call")) or ""
            if event.idempotency_key.replace(STEP_STARTED, "execution.step", 1) in ended:
                memory.ended[key] += 1
            else:
                # A value that was cut to be brief is left out, because the step would show it as the whole.
                values = mapping(payload.get("input")).items()
                given = {name: each for name, each in values if isinstance(each, str) and len(each) < BRIEF}
                memory.calls[key] = Call(key[1], key[0], text(payload.get("tool")), given or None, event.ts)
        return memory

    def note(self, event: HostEvent, *, is_open: bool) -> None:
        """Update the memory with an event; ``is_open``: whether the session has an open turn."""
        data, message = event.data, message_id(event)
        match event.name:
            case "execution.started":
                self.execution, self.declined = event.key, False
                self.is_new = not is_open and self.turn is None
            case "execution.succeeded" | "execution.failed" | "execution.interrupted":
                self.execution, self.is_new, self.declined = None, False, False
                self.turn, self.finish, self.has_error = None, None, False
                self.promoted.clear()
                self.calls.clear()
                self.steps.clear()
                self.ended.clear()
            case "inbox.enqueued":
                if (enqueued := input_id(event)) is not None:
                    self.waiting[enqueued] = read_input(event).kind
            case "inbox.cancelled":
                self.waiting.pop(input_id(event) or "", None)
            case "inbox.delivered" | "synthetic":
                self._deliver(event)
            case "step.started":
                self.is_new = False
                self.promoted.clear()
                if message is not None:
                    self.steps[message] = Step(text(data.get("agent")), model_of(data))
            case "step.ended" | "step.failed":
                self.finish = text(data.get("finish")) or "error"
                if event.name == "step.failed" and not is_abort(mapping(data.get("error"))):
                    self.has_error = True
            case "compaction.failed":
                self.has_error = True
            case "compaction.started":
                self.is_new, self.compaction = False, input_id(event) or event.message
                self.promoted = [each for each in self.promoted if each.message != input_id(event)]
            case "text.started" | "reasoning.started" | "shell.started":
                self.begun[self.start_key(event)] = event.t
            case "text.ended" | "reasoning.ended" | "shell.ended":
                self.begun.pop(self.start_key(event), None)
            case "tool.input.started" | "tool.called":
                self._call(event)
            case "tool.success" | "tool.failed":
                self.calls.pop((message, call_id(event)), None)
                self.ended[message, call_id(event)] += 1
                self.declined = self.declined or is_declined(event)
            case _:
                return
        for remembered in (self.calls, self.begun, self.steps, self.waiting):
            if len(remembered) > _MOST:
                remembered.popitem(last=False)

    @property
    def answered(self) -> Promoted | None:
        """The input whose turn the next step begins: the first prompt, else the first input."""
        return next((each for each in self.promoted if each.is_prompt), next(iter(self.promoted), None))

    @property
    def is_empty(self) -> bool:
        return not (
            self.execution or self.declined or self.waiting or self.promoted or self.calls or self.begun or self.steps
        )

    def start_key(self, event: HostEvent) -> tuple[str, str | None, Any]:
        """The key that connects the start and the end of a text, a reasoning or a command."""
        shell = text(mapping(event.data.get("shell")).get("id"))
        return event.name.partition(".")[0], message_id(event) or shell, str(event.data.get("ordinal"))

    def _deliver(self, event: HostEvent) -> None:
        delivered = input_id(event)
        if delivered is None:
            return
        kind = self.waiting.pop(delivered, "synthetic" if event.name == "synthetic" else "user")
        self.promoted = [each for each in self.promoted if each.message != delivered]
        self.promoted.append(Promoted(delivered, event.t, kind == "user"))

    def _call(self, event: HostEvent) -> None:
        key = message_id(event), call_id(event)
        call = self.calls.setdefault(key, Call(key[1], key[0]))
        call.name = text(event.data.get("name")) or call.name
        if event.name == "tool.called":
            call.input, call.started_ms = event.data.get("input"), event.t

    def call_of(self, event: HostEvent) -> Call:
        return self.calls.get((message_id(event), call_id(event))) or Call(call_id(event), message_id(event))

    def part_of(self, call: Call) -> str:
        """What names a call in its session, also if a provider repeats the call's id in one message."""
        repeated = self.ended[call.message, call.id]
        return f"{call.message}:tool:{call.id}" + (f":{repeated + 1}" if repeated else "")

    def spawning(self, description: str | None, agent: str | None) -> Call | None:
        """The open call that asked for a child session with this title and agent; ``None`` if it is not certain which
        call did.
        """
        fits = [
            call
            for call in self.calls.values()
            if call.started_ms is not None
            and mapping(call.input).get("description") == description
            and agent in (None, mapping(call.input).get("agent"), mapping(call.input).get("subagent_type"))
        ]
        return fits[0] if len(fits) == 1 else None

    def place(self, message: str | None) -> dict[str, Any]:
        """The agent and model of an assistant message, as far as they are known."""
        step = self.steps.get(message or "")
        return present(agent=step.agent, model=step.model) if step is not None else {}
