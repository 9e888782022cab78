"""The shapes of hooks that the rules understand. Pure.

A rule may drop a hook only if it knows that the hook is not final. So each item is first checked against the shape of
its source. The shape covers the fields that the rule needs for its decision, and the fields that the rule records with
a fixed type. An item that does not match is kept whole; no rule guesses.

Only the ids that OpenCode makes itself may not be empty, because records are known by them. Everything else comes from
a provider, a configuration or a clock, and may have any value of its type.

Fields that no rule reads may have any shape. New fields are allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from bridge.opencode.capture import shapes
from bridge.opencode.capture.shapes import mapping, text
from bridge.opencode.link.frames import HookItem

Check: TypeAlias = Callable[[Any], bool]
Shape: TypeAlias = "type | str | frozenset[str] | dict[str, Shape] | list[Shape] | Check"
"""A type, a constant string, a set of allowed strings, an object's fields (``name?`` may be missing or null), a
list whose items share one shape, or a predicate."""


def _check_of(shape: Shape) -> Check:
    """The test function for a shape, built only once, because the test runs for every hook."""
    if isinstance(shape, dict):
        return _object_check(
            [
                (name.removesuffix("?"), name.endswith("?"), _plain_type(one), _check_of(one))
                for name, one in shape.items()
            ]
        )
    if isinstance(shape, list):
        item = _check_of(shape[0])
        return lambda value: isinstance(value, list) and all(map(item, value))
    if isinstance(shape, frozenset):
        return lambda value: isinstance(value, str) and value in shape
    if isinstance(shape, str):
        return lambda value: bool(value == shape)
    if isinstance(shape, type):
        return lambda value: isinstance(value, shape)
    return shape


def _object_check(fields: list[tuple[str, bool, type | None, Check]]) -> Check:
    def check(value: Any) -> bool:
        if not isinstance(value, dict):
            return False
        for name, may_be_missing, plain, fits in fields:
            found = value.get(name)
            # Most values are of the plain type, so do not call their check.
            if found.__class__ is plain and found:
                continue
            if (found is None and may_be_missing) or fits(found):
                continue
            return False
        return True

    return check


def _plain_type(shape: Shape) -> type | None:
    """The type whose values all fit the shape, except empty ones, 0 and false; ``None`` if no type is enough."""
    if shape is _id:
        return str
    return shape if isinstance(shape, type) else None


_NUMBERS: Final = (int, float)


def _id(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _number(value: Any) -> bool:
    return isinstance(value, _NUMBERS) and not isinstance(value, bool)


def _any(value: Any) -> bool:
    return True


_has_model_ids: Final = _check_of({"id?": str, "modelID?": str, "providerID?": str})


def _model(value: Any) -> bool:
    return _has_model_ids(value) and bool({"id", "modelID"} & value.keys())


_SESSION_INFO: Final[Shape] = {
    "id": _id,
    "parentID?": _id,
    **{f"{name}?": str for name in ("title", "agent", "projectID", "directory", "version")},
    "metadata?": dict,
}

_ERROR: Final[Shape] = {
    "name": str,
    "message?": str,
    "data?": {"message?": str, "statusCode?": _number},
}

_MESSAGES: Final[dict[str, Shape]] = {
    "user": {"id": _id},
    "assistant": {
        "id": _id,
        "parentID": _id,
        "time": {"created?": _number, "completed?": _number},
        "agent?": str,
        "error?": _ERROR,
        "model?": _model,
        "modelID?": str,
        "providerID?": str,
    },
}

_SPAN: Final[Shape] = {"start": _number, "end?": _number}

_BEGUN: Final[Shape] = {"metadata?": {"sessionId?": _id}}
_ENDED: Final[Shape] = {"metadata?": {"sessionId?": _id}, "title?": str, "time?": _SPAN}
_TOOL_STATES: Final[dict[str, Shape]] = {"pending": _BEGUN, "running": _BEGUN, "completed": _ENDED, "error": _ENDED}

_TEXT: Final[Shape] = {
    "id": _id,
    "messageID": _id,
    "text": str,
    "synthetic?": bool,
    "time?": _SPAN,
    "metadata?": dict,
}

_PARTS: Final[dict[str, Shape]] = {
    "tool": {"id": _id, "messageID": _id, "callID": str, "tool": str},
    "text": _TEXT,
    "reasoning": _TEXT,
    "step-finish": {
        "id": _id,
        "messageID": _id,
        "reason?": str,
        "tokens?": dict,
        "cost?": _number,
        "snapshot?": str,
    },
    # Parts of these types contain nothing worth recording, or repeat what the recorded input already contains.
    **{kind: {} for kind in ("step-start", "snapshot", "patch", "compaction", "retry", "file", "agent", "subtask")},
}


def _one_of(kinds: dict[str, Shape], name: str) -> Check:
    checks = {kind: _check_of(shape) for kind, shape in kinds.items()}

    def check(value: Any) -> bool:
        kind = mapping(value).get(name)
        return isinstance(kind, str) and kind in checks and checks[kind](value)

    return check


_is_part: Final = _one_of(_PARTS, "type")
_is_tool_state: Final = _one_of(_TOOL_STATES, "status")


def _part(value: Any) -> bool:
    return _is_part(value) and (value["type"] != "tool" or _is_tool_state(value.get("state")))


_ASKED: Final[Shape] = {"sessionID": _id, "id": _id, "requestID?": _id, "tool?": {"callID": str}}
_REPLIED: Final[Shape] = {"sessionID": _id, "requestID": _id, "id?": _id, "tool?": {"callID": str}}
_IN_SESSION: Final[Shape] = {"sessionID": _id}

PROPERTIES: Final[dict[str, Shape]] = {
    "session.created": {"info": _SESSION_INFO},
    "session.updated": {"info": _SESSION_INFO},
    "session.deleted": {"info": _SESSION_INFO},
    "session.idle": _IN_SESSION,
    "session.status": {"sessionID": _id, "status": {"type": frozenset({"idle", "busy", "retry"})}},
    "session.error": {"sessionID?": _id, "error": _ERROR},
    "session.compacted": _IN_SESSION,
    "session.diff": {},
    "message.updated": {"info": _one_of(_MESSAGES, "role")},
    "message.removed": {"sessionID": _id, "messageID": _id},
    "message.part.updated": {"part": _part},
    "permission.asked": _ASKED,
    "permission.replied": _REPLIED,
    "question.asked": _ASKED,
    "question.replied": _REPLIED,
    "question.rejected": _REPLIED,
    "todo.updated": {},
    "file.edited": {},
    "chat.message": {"sessionID": _id, "messageID?": _id, "agent?": str},
    "tool.execute.after": {"sessionID": _id, "callID": str, "tool": str},
    "capture.gap": {},
}
"""Shapes of a bus event's properties or a hook's input, by the source that ``shapes.read`` returns."""

OUTPUTS: Final[dict[str, Shape]] = {
    "chat.message": {
        "message": {"id": _id, "role?": "user", "agent?": str, "model?": _model},
        "parts": [{"type": str, "synthetic?": bool, "metadata?": dict}],
    },
    "tool.execute.after": {"title?": str, "metadata?": dict},
}
"""Shapes of the outputs of hooks, for the hooks that have an output."""

_PROPERTIES: Final = {source: _check_of(shape) for source, shape in PROPERTIES.items()}
_OUTPUTS: Final = {source: _check_of(shape) for source, shape in OUTPUTS.items()}
_SESSIONLESS: Final = frozenset({"session.error", "session.diff", "todo.updated", "file.edited", "capture.gap"})
"""Sources that need not name a session."""


def is_known(item: HookItem, source: str) -> bool:
    """True if the rule of this item's ``source`` (see ``shapes.read``) understands the item."""
    fits = _PROPERTIES.get(source)
    if fits is None:
        return True
    is_bus = item.hook == "event"
    event = shapes.bus_event(item) if is_bus else {}
    properties: Any = event.get("properties") if is_bus else item.input
    if not fits(properties) or not _OUTPUTS.get(source, _any)(item.output):
        return False
    identity = event.get("id")
    if identity is not None and not _id(identity):
        return False
    return source in _SESSIONLESS or _names_one_session(item, source, properties)


def _names_one_session(item: HookItem, source: str, properties: dict[str, Any]) -> bool:
    info = properties.get("info")
    message = mapping(item.output).get("message") if item.hook != "event" else None
    session = text(info.get("id")) if source.startswith("session.") and isinstance(info, dict) else None
    for holder in (properties, info, properties.get("part"), message):
        named = holder.get("sessionID") if isinstance(holder, dict) else None
        if session is None:
            session = named
        elif named is not None and named != session:
            return False
    return _id(session)
