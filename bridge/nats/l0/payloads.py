"""The payloads of the L0 protocol, with one model for each kind of message. Pure.

Seed 002, 5.1 to 5.11, defines the required and optional fields. An absent
optional field stays absent. Unknown fields survive a round trip, so payloads of
newer senders are accepted. Bodies are canonical JSON (``streams/hashing.py``).
Sizes are bounded: large values are sent as pointers (cards and boxes).

Times are milliseconds since 1970, UTC.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Final, Literal, Self

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictInt, ValidationError, model_validator

from streams.hashing import MAX_DEPTH, Repairs, canonical, normalise

MAX_ID: Final = 512
"""Maximum length of an id, a name or a status, in characters."""

MAX_TEXT: Final = 16 * 1024
"""Maximum length of a reason or an error, in characters."""

MAX_CONTENT: Final = 64 * 1024
"""Maximum length of a chunk, in characters."""

MAX_OBJECT: Final = 64 * 1024
"""Maximum size of ``metadata``, ``stats`` or a user's ``args`` as canonical JSON, in bytes."""

MAX_BODY: Final = 512 * 1024
"""Maximum size of a whole payload, in bytes: half of a server's default limit, which includes the headers."""

CONTROL: Final = "__cg_control"

AfterExecution = Literal["suspend", "terminate"]


class PayloadError(ValueError):
    """A body does not match its subject. ``faults`` names the invalid fields, without their values."""

    code: ClassVar[str] = "l0-invalid-payload"

    def __init__(self, what: str, faults: tuple[str, ...]) -> None:
        super().__init__(what, faults)
        self.what, self.faults = what, faults

    def __str__(self) -> str:
        return f"not a valid {self.what} payload: {'; '.join(self.faults)}"


def _bounded(value: dict[str, Any]) -> dict[str, Any]:
    if len(canonical(value)) > MAX_OBJECT:
        raise ValueError(f"larger than {MAX_OBJECT} bytes; put the value into a card or a box and send its id instead")
    return value


Id = Annotated[str, Field(min_length=1, max_length=MAX_ID)]
Text = Annotated[str, Field(max_length=MAX_TEXT)]
Object = Annotated[dict[str, Any], AfterValidator(_bounded)]
Epoch = Annotated[StrictInt, Field(ge=0, lt=2**53)]


class L0Payload(BaseModel):
    """Base of all payloads: frozen, with strict types; unknown fields are allowed."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    FORBIDDEN: ClassVar[dict[str, str]] = {}
    """Forbidden fields, and what to send instead."""

    @classmethod
    def what(cls) -> str:
        """The payload's name in errors and documents, such as ``tool_result``."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()

    @classmethod
    def parse(cls, fields: Any) -> Self:
        """Validate ``fields``.

        Raises:
            PayloadError: some fields are invalid; the error names all of them.
        """
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            raise PayloadError(cls.what(), _faults(error)) from None

    @classmethod
    def decode(cls, body: bytes) -> Self:
        """Read a message's body.

        Raises:
            PayloadError: the body is not JSON, is too large or too deep, or has invalid fields. Such a message becomes
                a dead letter and is never acknowledged as handled.
        """
        if len(body) > MAX_BODY:
            raise PayloadError(cls.what(), (f"the body has {len(body)} bytes; the limit is {MAX_BODY}",))
        try:
            fields = orjson.loads(body)
        except ValueError:
            raise PayloadError(cls.what(), ("the body is not JSON",)) from None
        if body.count(b"{") + body.count(b"[") > MAX_DEPTH:
            repairs = Repairs()
            normalise(fields, repairs)
            if repairs.too_deep:
                raise PayloadError(cls.what(), (f"the body is nested more than {MAX_DEPTH} levels deep",))
        return cls.parse(fields)

    def fields(self) -> dict[str, Any]:
        """The given fields, including unknown ones; absent optional fields stay absent."""
        given = {name: value for name, value in self.__dict__.items() if name in self.model_fields_set}
        return given | (self.model_extra or {})

    def encode(self) -> bytes:
        """The canonical bytes.

        Raises:
            PayloadError: the bytes exceed ``MAX_BODY``; unknown fields count, too.
        """
        body = canonical(self.fields())
        if len(body) > MAX_BODY:
            raise PayloadError(self.what(), (f"the body has {len(body)} bytes; the limit is {MAX_BODY}",))
        return body


def _faults(error: ValidationError) -> tuple[str, ...]:
    return tuple(
        f"{'.'.join(map(str, each['loc'])) or 'the payload'}: {each['msg'].removeprefix('Value error, ')}"
        for each in error.errors(include_input=False, include_url=False)
    )


class _ByReference(L0Payload):
    """A payload that names a card or a box in place of the values that it is about."""

    @model_validator(mode="before")
    @classmethod
    def _has_nothing_forbidden(cls, value: Any) -> Any:
        for name in cls.FORBIDDEN:
            if isinstance(value, dict) and name in value:
                raise ValueError(f"`{name}` must not be sent inline: {cls.FORBIDDEN[name]}")
        return value


class Wakeup(L0Payload):
    """5.1: a notification without content. The request is in the agent's inbox."""

    agent_id: Id
    inbox_id: Id | None = None
    reason: Text | None = None
    metadata: Object | None = None


class ToolResult(_ByReference):
    """5.2: a tool's report, written into the agent's inbox; a wakeup follows."""

    FORBIDDEN: ClassVar[dict[str, str]] = {"result": "put it into a card and send `tool_result_card_id`"}

    tool_call_id: Id
    agent_turn_id: Id
    turn_epoch: Epoch
    agent_id: Id
    after_execution: AfterExecution
    status: Literal["success", "failed", "canceled", "timeout", "partial"]
    tool_result_card_id: Id

    @property
    def closes_slot(self) -> bool:
        """True if this report answers the waiting call; a ``partial`` report does not end the call."""
        return self.status != "partial"

    @property
    def key(self) -> tuple[str, str]:
        """Two reports with the same key are one report: ``(agent_turn_id, tool_call_id)``."""
        return self.agent_turn_id, self.tool_call_id


class Stop(L0Payload):
    """5.3: a request to cancel a turn, written into the agent's inbox; a wakeup follows."""

    agent_id: Id
    agent_turn_id: Id
    turn_epoch: Epoch
    reason: Text | None = None


class ToolCommand(_ByReference):
    """5.4 and 5.5: a command to run a tool, either a service's or a built-in one. A card contains the arguments."""

    FORBIDDEN: ClassVar[dict[str, str]] = {"args": "put them into a card and send `tool_call_card_id`"}

    tool_call_id: Id
    agent_turn_id: Id
    turn_epoch: Epoch
    agent_id: Id
    tool_name: Id | None = None
    after_execution: AfterExecution | None = None
    tool_call_card_id: Id | None = None
    context_box_id: Id | None = None
    dispatch_requested_at: StrictInt | Id | None = None


class Step(L0Payload):
    """5.6: a step of a turn, for observers."""

    agent_turn_id: Id
    step_id: Id
    phase: Id
    metadata: Object | None = None


class Task(L0Payload):
    """5.7: a turn has ended."""

    agent_turn_id: Id
    status: Id
    deliverable_card_id: Id | None = None
    output_box_id: Id | None = None
    tool_result_card_id: Id | None = None
    error: Text | None = None
    error_code: Id | None = None
    stats: Object | None = None


class Chunk(L0Payload):
    """5.8: a piece of an unfinished answer. The message may be lost, so nothing may depend on it."""

    agent_turn_id: Id
    step_id: Id
    chunk_type: Id
    content: Annotated[str, Field(max_length=MAX_CONTENT)]
    index: Epoch | None = None
    metadata: Object | None = None


class State(L0Payload):
    """5.9: an agent's state changed. The message is only a notification, because the log is authoritative."""

    agent_id: Id
    agent_turn_id: Id
    status: Id
    turn_epoch: Epoch
    updated_at: StrictInt | Id
    output_box_id: Id | None = None
    metadata: Object | None = None


class UiAction(L0Payload):
    """5.10: a person acted in a user interface. Only a tool that explicitly allows such actions takes them."""

    action_id: Id
    agent_id: Id
    tool_name: Id
    args: Object
    metadata: Object | None = None
    message_id: Id | None = None
    parent_step_id: Id | None = None

    @property
    def key(self) -> str:
        return self.action_id

    @property
    def message_is_uuid7(self) -> bool:
        """True if there is a ``message_id`` and it is a UUIDv7, which makes it usable for correlation."""
        return self.message_id is not None and _UUID7.fullmatch(self.message_id) is not None


class UiActionAck(L0Payload):
    """5.11: the answer to 5.10. ``status`` is ``accepted``, ``busy`` or ``rejected``; others may be added."""

    action_id: Id
    agent_id: Id
    status: Id
    message_id: Id | None = None
    tool_result_card_id: Id | None = None
    error_code: Id | None = None
    error: Text | None = None


_UUID7 = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-7[0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}")


def effective_after_execution(
    report: ToolResult, content: Any, tool_name: str | None, trusted_tools: frozenset[str]
) -> AfterExecution:
    """What happens after a tool.

    The answer is the result's ``__cg_control.after_execution`` if the tool is trusted and the value is ``suspend`` or
    ``terminate``; otherwise, the answer is the value in the report. If the results of untrusted tools counted too, any
    tool's output could end a turn. ``content`` is the content of the result card.
    """
    if tool_name is None or tool_name not in trusted_tools or not isinstance(content, dict):
        return report.after_execution
    result = content.get("result")
    control = result.get(CONTROL) if isinstance(result, dict) else None
    wanted = control.get("after_execution") if isinstance(control, dict) else None
    return wanted if wanted in ("suspend", "terminate") else report.after_execution
