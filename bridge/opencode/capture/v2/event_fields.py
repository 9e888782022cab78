"""Reads the events of an OpenCode 2 service. Pure.

An event is ``{id, created, type, data, location?, durable?: {aggregateID, seq}}``. Nothing here relies on a shape:
missing values are left out, and odd values are kept unchanged.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from bridge.opencode.capture.shapes import mapping, moment, number, present, text

_INTERRUPTED = "Tool execution interrupted"
_STATUS = re.compile(r"\bHTTP (\d{3})\b")
_BODY = re.compile(r":?\s*[\[{<].*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class HostEvent:
    """One event of the service. ``name`` is its type without ``session.``.

    ``seq`` is the event's number in its session (or in another aggregate); ``None`` for an event that the service only
    announces. ``session`` is ``None`` for an event that belongs to no session, such as ``worktree.resolved``.
    """

    type: str
    name: str
    id: str | None
    t: int
    session: str | None
    seq: int | None
    data: dict[str, Any]

    @property
    def key(self) -> str:
        return self.id or f"{self.seq}"

    @property
    def message(self) -> str:
        """The id of the message that the event made, if it made one by itself: ``evt_X`` makes ``msg_X``."""
        return f"msg_{self.key.removeprefix('evt_')}"


def read_event(value: Any) -> HostEvent | None:
    """The event that a service announced; ``None`` if the value is not an event."""
    found = mapping(value)
    type_, data = text(found.get("type")), found.get("data")
    if type_ is None or not isinstance(data, dict):
        return None
    seq = mapping(found.get("durable")).get("seq")
    holders = (data, mapping(data.get("form")))
    return HostEvent(
        type=type_,
        name=type_.removeprefix("session."),
        id=text(found.get("id")),
        t=moment(found.get("created")),
        session=next((named for holder in holders if (named := _session(holder.get("sessionID")))), None),
        seq=seq if type(seq) is int and seq >= 0 else None,
        data=data,
    )


def _session(value: Any) -> str | None:
    return value if isinstance(value, str) and value.startswith("ses") else None


def session_info(data: dict[str, Any]) -> dict[str, Any]:
    """A session in the form in which OpenCode 1 describes one, read from ``session.created``, ``session.forked``, or
    ``GET /api/session/{id}``, or from what this function returned."""
    boundary = mapping(data.get("boundary"))
    return {
        **data,
        "id": text(data.get("id")) or text(data.get("sessionID")),
        "parentID": None if boundary else text(data.get("parentID")),
        "directory": text(data.get("directory")) or text(mapping(data.get("location")).get("directory")),
        "fork": data.get("fork") or ({"sessionID": data.get("parentID"), "boundary": boundary} if boundary else None),
    }


def origin_of(info: dict[str, Any]) -> dict[str, Any] | None:
    """The session that a fork was made from, and its last message that the fork has; ``None`` for other sessions."""
    fork = mapping(info.get("fork"))
    origin, message = text(fork.get("sessionID")), text(mapping(fork.get("boundary")).get("messageID"))
    return present(session=origin, message=message) if origin else None


def input_id(event: HostEvent) -> str | None:
    """The id of the message that an enqueued, delivered or synthetic input becomes, or that a compaction answers."""
    if event.name == "synthetic":
        return event.message
    return text(event.data.get("inboxID")) or text(event.data.get("inputID"))


@dataclass(frozen=True, slots=True)
class Input:
    """An input: a person's prompt (``user``), a program's (``synthetic``), or other work."""

    kind: str
    delivery: str | None
    parts: list[dict[str, Any]]
    metadata: dict[str, Any]


def read_input(event: HostEvent) -> Input:
    """The input of ``inbox.enqueued`` or ``synthetic``. ``parts`` has the form of the parts of an OpenCode 1
    message."""
    admitted = mapping(event.data.get("item"))
    content = mapping(admitted.get("payload"))
    if event.name == "synthetic":
        content = {name: value for name, value in event.data.items() if name != "sessionID"}
        admitted = {"type": "synthetic"}
    kind = text(admitted.get("type")) or "user"
    parts: list[dict[str, Any]] = []
    if isinstance(content.get("text"), str):
        parts.append({"type": "text", "text": content["text"]})
    for file in content["files"] if isinstance(content.get("files"), list) else []:
        one = mapping(file)
        parts.append({"type": "file", **one, **present(filename=text(one.get("name")), url=text(one.get("uri")))})
    agents = content["agents"] if isinstance(content.get("agents"), list) else []
    parts += [{"type": "agent", **mapping(agent)} for agent in agents]
    known = ("text", "files", "agents", "metadata")
    if more := {name: value for name, value in content.items() if name not in known}:
        parts.append({"type": "other", **more})
    return Input(kind, text(admitted.get("delivery")), parts, mapping(content.get("metadata")))


def call_id(event: HostEvent) -> str:
    return text(event.data.get("id")) or ""


def message_id(event: HostEvent) -> str | None:
    return text(event.data.get("assistantMessageID"))


def child_of(event: HostEvent) -> str | None:
    """The child session that a tool call reports, in ``tool.progress`` while it runs and again when it has finished."""
    if event.name not in ("tool.success", "tool.failed", "tool.progress"):
        return None
    return text(mapping(event.data.get("metadata")).get("sessionID"))


def is_launch(event: HostEvent) -> bool:
    """True if a call only started its child session, which goes on in the background and reports later."""
    return child_of(event) is not None and mapping(event.data.get("metadata")).get("status") == "running"


def is_declined(event: HostEvent) -> bool:
    """True if a person refused the tool call."""
    error = mapping(event.data.get("error"))
    message = text(error.get("message")) or ""
    return event.name == "tool.failed" and error.get("type") == "aborted" and not message.startswith(_INTERRUPTED)


def is_abort(error: dict[str, Any]) -> bool:
    """True for an interruption, which ends the turn and is not an error."""
    return error.get("type") == "aborted"


def error_of(error: dict[str, Any]) -> dict[str, Any]:
    """The payload for an error, without the provider's response, which may contain anything."""
    message = text(error.get("message"))
    found = _STATUS.search(message or "")
    status = number(error.get("status")) or (int(found[1]) if found is not None else None)
    return present(
        name=text(error.get("type")) or "unknown",
        reason=_BODY.sub("", message) if message is not None and status is not None else message,
        status=status,
    )


def tool_result(event: HostEvent) -> dict[str, Any]:
    """What a finished tool call adds to its step: output, error, attachments."""
    data = event.data
    content = [mapping(each) for each in data["content"]] if isinstance(data.get("content"), list) else []
    said = [each["text"] for each in content if isinstance(each.get("text"), str)]
    if said and said[-1].strip() == f"Exited with code {mapping(data.get('metadata')).get('exit')}":
        said.pop()  # the step's field ``exit`` already has the exit code
    files = [each for each in content if each.get("type") not in ("text", None)]
    error = mapping(data.get("error"))
    known = ("sessionID", "assistantMessageID", "id", "content", "error", "metadata", "executed")
    more = {name: value for name, value in data.items() if name not in known}
    return present(
        status="completed" if event.name == "tool.success" else "error",
        output="\n".join(said) if said else None,
        attachments=[{**each, **present(url=each.get("uri"), filename=each.get("name"))} for each in files] or None,
        error=text(error.get("message")),
        error_type=text(error.get("type")),
        metadata=mapping(data.get("metadata")) or None,
        host=more or None,
    )


def ask_of(event: HostEvent) -> tuple[str, str, str, dict[str, Any]] | None:
    """``(request, kind, state, content)`` of a permission, question or form, in OpenCode 1's words; ``None`` for other
    events."""
    domain, _, state = event.name.partition(".")
    data = event.data
    if domain == "permission" and state in ("asked", "replied"):
        content = {k: v for k, v in data.items() if k not in ("id", "sessionID", "requestID", "source")}
        names = {"action": "permission", "resources": "patterns", "save": "always", "decision": "reply"}
        content = {names.get(name, name): value for name, value in content.items()}
        return _ask(data, "permission", state, content, mapping(data.get("source")))
    states = {"created": "asked", "replied": "replied", "cancelled": "rejected"}
    if domain == "form" and state in states:
        form = mapping(data.get("form")) or data
        metadata = mapping(form.get("metadata"))
        kind = "question" if metadata.get("kind", "question") == "question" else "form"
        content = _form(form) if state == "created" else _answers(data)
        return _ask(form, kind, states[state], content, mapping(metadata.get("tool")))
    return None


def _ask(
    data: dict[str, Any], kind: str, state: str, content: dict[str, Any], tool: dict[str, Any]
) -> tuple[str, str, str, dict[str, Any]] | None:
    request = text(data.get("requestID")) or text(data.get("id"))
    if request is None:
        return None
    call = text(tool.get("id"))
    return request, kind, state, {**present(call=call), **content}


def _form(form: dict[str, Any]) -> dict[str, Any]:
    fields = [mapping(each) for each in form["fields"]] if isinstance(form.get("fields"), list) else []
    questions = [
        present(
            question=text(each.get("description")) or text(each.get("title")) or text(each.get("key")),
            header=text(each.get("title")),
            options=[
                present(label=mapping(option).get("label"), description=mapping(option).get("description"))
                for option in (each["options"] if isinstance(each.get("options"), list) else [])
            ],
            multiple=True if each.get("type") == "multiselect" else None,
            custom=False if each.get("custom") is False else None,
        )
        for each in fields
    ]
    metadata = {name: value for name, value in mapping(form.get("metadata")).items() if name not in ("kind", "tool")}
    return present(questions=questions, title=text(form.get("title")), metadata=metadata or None)


def _answers(data: dict[str, Any]) -> dict[str, Any]:
    answer = data.get("answer")
    if not isinstance(answer, dict):
        return {}
    return {"answers": [value if isinstance(value, list) else [str(value)] for value in answer.values()]}
