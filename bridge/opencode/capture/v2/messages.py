"""Turns the messages of a session, as the service's API has them, back into the events that the service announced.
Pure.

The service keeps no log of its events, but its messages hold nearly all of their content, with the ids that the keys of
the records are made of. So what the plugin could not see is translated by the same rules, and what was recorded is
recognised. The messages lack asks that were answered, inputs that were taken back, and every text of which no end was
committed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from bridge.opencode.capture.shapes import mapping, number, present, text
from bridge.opencode.capture.v2.event_fields import HostEvent, call_id, input_id, is_declined, message_id

_INHERITED = re.compile(r"msg_\w+_\d+")
"""The id of a message that a fork inherited."""

_RESTARTED = "The server restarted while you were working"
"""The beginning of the message with which a service goes on after a restart."""

_TIME_BITS = 36
_ID_TIME = re.compile(r"msg_([0-9a-f]{12})")
_MOST_WAIT_MS = 86_400_000
_ENDS = ("succeeded", "failed", "interrupted")


def events_of(
    session: str,
    messages: Iterable[dict[str, Any]],
    inbox: Iterable[dict[str, Any]] = (),
    *,
    is_active: bool,
    is_over: bool = True,
) -> list[HostEvent]:
    """The events of a session whose messages, in the API's order, and waiting inputs are given.

    ``is_active``: the service says that the session works. ``is_over``: a session that is not active has no turn that
    another process could be running.
    """
    return list(_Rebuilding(session).all_of(messages, inbox, is_active=is_active, is_over=is_over))


def children_of(messages: Iterable[dict[str, Any]]) -> Iterator[tuple[str, str, str]]:
    """The child sessions that tool calls name: ``(child, assistant message, call)``."""
    for message in messages:
        for part in _parts(message):
            child = text(mapping(mapping(part.get("state")).get("metadata")).get("sessionID"))
            if part.get("type") == "tool" and child is not None:
                yield child, text(message.get("id")) or "", text(part.get("id")) or ""


def sign(event: HostEvent) -> tuple[Any, ...]:
    if event.name.startswith("execution."):
        return event.name, event.id
    given = input_id(event) if event.name.startswith(("inbox.", "synthetic")) else None
    name = "inbox.enqueued" if event.name == "synthetic" else event.name
    return name, given, message_id(event), call_id(event), event.data.get("ordinal")


def before(events: Iterable[HostEvent], waiting: Sequence[HostEvent]) -> list[HostEvent]:
    if not waiting:
        return list(events)
    until, left = waiting[0].t, Counter(map(sign, waiting))
    delivered = {input_id(event) for event in waiting if event.name == "inbox.delivered"}
    past: list[HostEvent] = []
    for event in reversed(list(events)):  # from the newest, because some events have no id of their own
        name = sign(event)
        if left[name]:
            left[name] -= 1
        elif event.t <= until or (event.name == "inbox.enqueued" and input_id(event) in delivered):
            past.append(event)
    return past[::-1]


class _Rebuilding:
    def __init__(self, session: str) -> None:
        self._session = session
        self._is_running = self._is_cut = self._goes_on = self._is_declined = False
        self._last = 0

    def all_of(
        self, messages: Iterable[dict[str, Any]], inbox: Iterable[dict[str, Any]], *, is_active: bool, is_over: bool
    ) -> Iterator[HostEvent]:
        for message in messages:
            if _INHERITED.fullmatch(text(message.get("id")) or ""):
                continue
            match message.get("type"):
                case "user" | "synthetic":
                    yield from self._input(message)
                case "assistant":
                    yield from self._assistant(message, is_active=is_active or not is_over)
                case "compaction":
                    yield from self._compaction(message)
                case "shell":
                    yield from self._shell(message)
                case "idle":
                    yield self._end(message)
                case "agent-switched" | "model-switched":
                    name = str(message["type"]).replace("switched", "selected").replace("-", ".")
                    chosen = _named(message, "agent", "model", "previous")
                    yield self._event(name, _created(message), chosen, _event_id(message))
                case "location-switched":
                    place = _named(message, "location", "projectID")
                    yield self._event("moved", _created(message), place, _event_id(message))
            self._last = max(self._last, _created(message), _completed(message) or 0)
        if self._is_running and not is_active and (is_over or self._is_declined) and not self._goes_on:
            yield self._interrupted()
        for waiting in inbox:
            if (
                enqueued := self._enqueued(waiting, number(mapping(waiting.get("time")).get("created")) or 0)
            ) is not None:
                yield enqueued

    def _event(self, name: str, t: int, data: dict[str, Any], id_: str | None = None) -> HostEvent:
        return HostEvent(f"session.{name}", name, id_, t, self._session, None, {"sessionID": self._session, **data})

    def _begin(self, t: int) -> Iterator[HostEvent]:
        if not self._is_running:
            self._is_running = True
            yield self._event("execution.started", t, {})

    def _interrupted(self) -> HostEvent:
        """The end of an execution of which the service kept none: it was refused, or its process ended."""
        self._is_running = self._is_cut = self._is_declined = False
        return self._event("execution.interrupted", self._last, {"reason": "shutdown"})

    def _input(self, message: dict[str, Any]) -> Iterator[HostEvent]:
        delivered = _created(message)
        is_prompt = message.get("type") == "user"
        is_over = self._is_declined or (is_prompt and self._is_cut and not self._goes_on)
        if self._is_running and is_over:
            yield self._interrupted()
        self._goes_on = (text(message.get("text")) or "").startswith(_RESTARTED) and not is_prompt
        known = ("id", "type", "time")
        payload = {name: value for name, value in message.items() if name not in known}
        item = {"id": message.get("id"), "type": message.get("type"), "payload": payload}
        if (enqueued := self._enqueued(item, _enqueued_ms(message))) is None:
            return
        yield enqueued
        yield from self._begin(delivered)
        yield self._event("inbox.delivered", delivered, {"inboxID": message.get("id")})

    def _enqueued(self, item: dict[str, Any], t: int) -> HostEvent | None:
        if text(item.get("id")) is None or item.get("type") not in ("user", "synthetic"):
            return None
        given = {name: item[name] for name in ("type", "payload", "delivery") if name in item}
        return self._event("inbox.enqueued", t, {"inboxID": item["id"], "item": given})

    def _assistant(self, message: dict[str, Any], *, is_active: bool) -> Iterator[HostEvent]:
        id_, begun, completed = text(message.get("id")), _created(message), _completed(message)
        finish, error = text(message.get("finish")), mapping(message.get("error"))
        is_done = bool(finish or error)
        self._is_cut = not is_done or error.get("type") == "aborted"
        self._goes_on = False
        yield from self._begin(begun)
        own = {"assistantMessageID": id_}
        yield self._event("step.started", begun, {**own, **_named(message, "agent", "model")})
        is_gone = not is_done and (completed is not None or not is_active)
        ended = number(mapping(message.get("time")).get("streamed")) or completed or (begun if is_gone else None)
        parts = _parts(message)
        ordinals: dict[str, int] = {}
        for place, part in enumerate(parts):
            kind = text(part.get("type")) or ""
            if kind == "tool":
                yield from self._tool(own, part)
            elif kind in ("text", "reasoning"):
                ordinal = ordinals[kind] = ordinals.get(kind, -1) + 1
                following = next((mapping(each.get("time")).get("created") for each in parts[place + 1 :]), None)
                at = number(mapping(part.get("time")).get("completed")) or number(following) or ended
                if at is None:
                    continue  # the model is still writing it
                if is_gone and not part.get("text"):
                    yield self._event("text.cut", at, own)
                else:
                    given = {**own, "ordinal": ordinal, "text": part.get("text"), **_named(part, "state")}
                    yield self._event(f"{kind}.ended", at, given)
        if is_done and completed is not None:
            snapshot = mapping(message.get("snapshot"))
            facts = {
                **own,
                **_named(message, "finish", "rawFinish", "cost", "tokens"),
                **present(snapshot=snapshot.get("end"), files=snapshot.get("files")),
            }
            failed = bool(error) or finish == "error"
            yield self._event(
                "step.failed" if failed else "step.ended", completed, {**facts, "error": error} if failed else facts
            )

    def _tool(self, own: dict[str, Any], part: dict[str, Any]) -> Iterator[HostEvent]:
        state, time = mapping(part.get("state")), mapping(part.get("time"))
        called = {**own, "id": part.get("id")}
        begun = number(time.get("created")) or 0
        ran, completed = number(time.get("ran")), number(time.get("completed"))
        yield self._event("tool.input.started", begun, {**called, "name": part.get("name")})
        if ran is not None or isinstance(state.get("input"), dict):
            yield self._event("tool.called", ran or begun, {**called, "input": state.get("input")})
        status = state.get("status")
        if status in ("completed", "error") and completed is not None:
            result = {**called, **_named(part, "executed"), **_named(state, "content", "metadata", "error")}
            ended = self._event("tool.success" if status == "completed" else "tool.failed", completed, result)
            # A refused call ends the execution, but the service keeps no row for that end.
            self._is_declined = self._is_declined or is_declined(ended)
            yield ended

    def _compaction(self, message: dict[str, Any]) -> Iterator[HostEvent]:
        at = _created(message)
        yield from self._begin(at)
        asked = {"inputID": message.get("id")} if message.get("reason") == "manual" else {}
        reason = {**asked, **_named(message, "reason")}
        yield self._event("compaction.started", at, reason, _event_id(message))
        if message.get("status") == "completed":
            yield self._event("compaction.ended", at, {**reason, "text": message.get("summary")})
        elif message.get("status") == "failed":
            yield self._event("compaction.failed", at, {**reason, "error": message.get("error")})

    def _shell(self, message: dict[str, Any]) -> Iterator[HostEvent]:
        begun, completed = _created(message), _completed(message)
        shell = {
            "id": message.get("shellID"),
            "time": present(started=begun, completed=completed),
            **_named(message, "command", "status", "exit"),
        }
        yield self._event("shell.started", begun, {"shell": shell}, _event_id(message))
        if completed is not None:
            yield self._event("shell.ended", completed, {"shell": shell, **_named(message, "output")})

    def _end(self, message: dict[str, Any]) -> HostEvent:
        self._is_running = self._is_cut = self._goes_on = self._is_declined = False
        outcome = message.get("outcome") if message.get("outcome") in _ENDS else "interrupted"
        # The service keeps no end of an interruption by its own shutdown.
        reason = {"reason": "user"} if outcome == "interrupted" else {}
        return self._event(f"execution.{outcome}", _created(message), reason, _event_id(message))


def _created(message: dict[str, Any]) -> int:
    return number(mapping(message.get("time")).get("created")) or 0


def _completed(message: dict[str, Any]) -> int | None:
    return number(mapping(message.get("time")).get("completed"))


def _event_id(message: dict[str, Any]) -> str | None:
    """The id of the event that made a message: ``evt_X`` made ``msg_X``."""
    id_ = text(message.get("id"))
    return f"evt_{id_.removeprefix('msg_')}" if id_ is not None else None


def _enqueued_ms(message: dict[str, Any]) -> int:
    """When an input was enqueued: its id tells, except for an id that Durable Stream made, and for a report, whose id
    is made when the work begins that it reports."""
    delivered, metadata = _created(message), mapping(message.get("metadata"))
    found = _ID_TIME.match(text(message.get("id")) or "")
    if found is None or "durable_stream" in metadata or "source" in metadata:
        return delivered
    waited = (delivered - (int(found[1], 16) >> 12)) % (1 << _TIME_BITS)
    return delivered - waited if waited <= _MOST_WAIT_MS else delivered


def _parts(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    return [part for part in map(mapping, content if isinstance(content, list) else []) if part]


def _named(value: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value[name] for name in names if name in value}
