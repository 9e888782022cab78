"""Reads the values that OpenCode passes to hooks and makes payloads from them. Pure.

OpenCode's published types lag behind what OpenCode sends, so nothing here relies on a shape: missing values are left
out, and odd values are kept unchanged.
"""

from __future__ import annotations

import re
from typing import Any

from bridge.opencode.link.frames import MAX_SEQ, HookItem

_RECORDED_ELSEWHERE = frozenset(
    # The provider's response may contain anything, and the other values are recorded in fields of their own.
    ("responseHeaders", "responseBody", "requestBodyValues", "stack", "message", "statusCode", "isRetryable")
)

_NUMBERS = (int, float)

BRIEF = 200
"""How many characters of each text of a tool call's input are recorded when the call starts."""

_ID_TIME = re.compile("msg_([0-9a-f]{9})")
"""The ms, modulo 2**36, at which OpenCode made the id of a message."""

_FIRST_MS = 1_577_836_800_000
"""The beginning of 2020, before OpenCode made its first message."""

_SHELL_NOTE = "The following tool was executed by the user"
_SHELL_ABORTED = "<metadata>\nUser aborted the command\n</metadata>"


def mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def number(value: Any) -> int | None:
    """``value`` as whole milliseconds if it is a number; otherwise ``None``."""
    if not isinstance(value, _NUMBERS) or isinstance(value, bool) or value != value:
        return None
    return int(max(-MAX_SEQ, min(MAX_SEQ, value)))


def moment(value: Any) -> int:
    """``value`` as the time of an event, which is not before 1970; 0 if it is no number."""
    return max(number(value) or 0, 0)


def present(**fields: Any) -> dict[str, Any]:
    """The fields that are not ``None``; JSON nulls are not worth storing."""
    return {name: value for name, value in fields.items() if value is not None}


def bus_event(item: HookItem) -> dict[str, Any]:
    """The bus event of an ``event`` hook: ``{id, type, properties}``."""
    return mapping(mapping(item.input).get("event"))


def read(item: HookItem) -> tuple[str, str | None, dict[str, Any]]:
    """What an item is about: the type, the id and the properties of a bus event; or the name of any other hook, no id,
    and the hook's input."""
    # This function runs for every hook, so it calls no helper.
    given = item.input
    if item.hook != "event":
        return item.hook, None, given if isinstance(given, dict) else {}
    event = given.get("event") if isinstance(given, dict) else None
    if not isinstance(event, dict):
        return "event", None, {}
    type_, id_, properties = event.get("type"), event.get("id"), event.get("properties")
    return (
        type_ if isinstance(type_, str) and type_ else "event",
        id_ if isinstance(id_, str) and id_ else None,
        properties if isinstance(properties, dict) else {},
    )


def whole(item: HookItem, type_: str) -> dict[str, Any]:
    """The whole content of an item: the properties of a bus event, or the input and output of any other hook."""
    event = bus_event(item)
    usual = {"event": {"id": text(event.get("id")), "type": type_, "properties": event.get("properties")}}
    if item.output is None and item.input in (usual, {"event": present(**usual["event"])}):
        return {"properties": event.get("properties")}
    return present(input=item.input, output=item.output)


def session_of(source: str, properties: dict[str, Any]) -> str | None:
    """The session that a hook or a bus event names; ``None`` if it names none."""
    if named := text(properties.get("sessionID")):
        return named
    for name in ("info", "part"):
        holder = properties.get(name)
        if isinstance(holder, dict) and (named := text(holder.get("sessionID"))):
            return named
    return text(mapping(session_info(source, properties)).get("id"))


def session_info(source: str, properties: dict[str, Any]) -> dict[str, Any] | None:
    """The ``info`` of a ``session.*`` bus event, which names the parent; ``None`` for other items."""
    if not source.startswith("session."):
        return None
    info = properties.get("info")
    return info if isinstance(info, dict) and text(info.get("id")) else None


def appeared(info: dict[str, Any], lineage: str) -> dict[str, Any]:
    """The payload for a session that was created or resumed."""
    return present(
        session=info.get("id"),
        parent=text(info.get("parentID")),
        lineage=lineage,
        title=text(info.get("title")),
        agent=text(info.get("agent")),
        project=text(info.get("projectID")),
        directory=text(info.get("directory")),
        version=text(info.get("version")),
        metadata=mapping(info.get("metadata")) or None,
    )


def model_of(info: dict[str, Any]) -> dict[str, Any] | None:
    nested = mapping(info.get("model"))
    model = text(info.get("modelID")) or text(nested.get("modelID")) or text(nested.get("id"))
    provider = text(info.get("providerID")) or text(nested.get("providerID"))
    return present(provider=provider, model=model) if model else None


def tool_step(part: dict[str, Any]) -> dict[str, Any]:
    """The payload for a tool part that completed or failed, without the fields that name session and turn."""
    state = mapping(part.get("state"))
    time = mapping(state.get("time"))
    started, ended = number(time.get("start")), number(time.get("end"))
    return present(
        kind="tool",
        tool=text(part.get("tool")),
        call=text(part.get("callID")),
        status=text(state.get("status")),
        title=text(state.get("title")),
        input=state.get("input"),
        output=state.get("output"),
        error=state.get("error"),
        metadata=mapping(state.get("metadata")) or None,
        attachments=state.get("attachments") or None,
        started_ms=started,
        ended_ms=ended,
        duration_ms=ended - started if started is not None and ended is not None else None,
    )


def tool_started(tool: Any, call: Any, given: Any) -> dict[str, Any]:
    """The payload for a tool call that starts to run: enough of its redacted input to say what it does."""
    texts = {name: value[:BRIEF] for name, value in mapping(given).items() if isinstance(value, str)}
    return present(tool=text(tool), call=text(call), input=texts or None)


def tool_step_from_after(item: HookItem) -> dict[str, Any]:
    """The payload for a tool call whose part never got its last update."""
    given, result = mapping(item.input), mapping(item.output)
    return present(
        kind="tool",
        tool=text(given.get("tool")),
        call=text(given.get("callID")),
        status="completed",
        title=text(result.get("title")),
        input=given.get("args"),
        output=result.get("output"),
        metadata=mapping(result.get("metadata")) or None,
    )


def inference_step(part: dict[str, Any]) -> dict[str, Any]:
    return present(
        kind="inference",
        finish=text(part.get("reason")),
        tokens=mapping(part.get("tokens")) or None,
        cost=part.get("cost"),
        snapshot=text(part.get("snapshot")),
    )


def output_of(part: dict[str, Any]) -> dict[str, Any]:
    """The payload for a text or reasoning part that ended."""
    time = mapping(part.get("time"))
    return present(
        kind=part.get("type"),
        text=part.get("text"),
        started_ms=number(time.get("start")),
        ended_ms=number(time.get("end")),
        metadata=mapping(part.get("metadata")) or None,
    )


def error_of(error: dict[str, Any]) -> dict[str, Any]:
    """The payload for an error, without the provider's response, which may contain anything."""
    data = mapping(error.get("data"))
    return present(
        name=text(error.get("name")) or "UnknownError",
        reason=text(data.get("message")) or text(error.get("message")),
        status=number(data.get("statusCode")),
        retryable=data.get("isRetryable"),
        data={k: v for k, v in data.items() if k not in _RECORDED_ELSEWHERE} or None,
    )


def is_abort(error: dict[str, Any]) -> bool:
    """True for an abort, which ends the turn and is not an error."""
    return error.get("name") == "MessageAbortedError"


def beginning(payload: dict[str, Any], length: int) -> str:
    """The first words of an input, on one line: of its text, or of its ``!`` command."""
    parts, shell = payload.get("parts"), payload.get("shell")
    typed = [part for part in map(mapping, parts if isinstance(parts, list) else []) if is_typed(part)]
    said = [text(part.get("text")) or "" for part in typed]
    return " ".join((f"!{shell}" if isinstance(shell, str) else " ".join(said))[: 4 * length].split())[:length]


def is_copy(info: dict[str, Any], now_ms: int) -> bool:
    """True for a message that a fork copied: it keeps its time, but has a newer id. A time that cannot be true tells
    nothing."""
    made, found = number(mapping(info.get("time")).get("created")), _ID_TIME.match(text(info.get("id")) or "")
    if made is None or found is None or not _FIRST_MS <= made <= now_ms:
        return False
    return 0 < (int(found[1], 16) - made) % 2**36 < 2**35


def is_typed(part: dict[str, Any]) -> bool:
    return part.get("type") == "text" and not part.get("synthetic")


def is_shell_note(part: dict[str, Any]) -> bool:
    """True for the only part of the user message of a ``!`` command."""
    return bool(part.get("synthetic")) and part.get("text") == _SHELL_NOTE


def is_aborted_shell(payload: dict[str, Any]) -> bool:
    """True for the step of a ``!`` command that was interrupted: OpenCode reports the interruption only at the end of
    the output."""
    output = payload.get("output")
    return isinstance(output, str) and output.endswith(_SHELL_ABORTED)


def is_human(parts: list[Any]) -> bool:
    """True if a person wrote a part of the prompt: that part is neither synthetic nor injected by Durable Stream."""
    objects = [mapping(part) for part in parts]
    return any(
        not part.get("synthetic") and not mapping(part.get("metadata")).get("durable_stream") for part in objects
    )
