"""The frames of link protocol 1, which shim, sidecar and command line exchange.

One frame is one JSON object in one websocket text message; ``type`` names its
kind. ``decode`` reads a message, ``encode`` writes one; both are pure.

Hook items are the most frequent data: thousands may arrive per second. The fields ``input`` and ``output`` hold the
user's data and are never inspected. Only the shape around these fields is checked.

JavaScript may legally write values that JSON readers refuse. A frame with such values must not be rejected, because the
shim would resend it forever. So the frame is repaired, and the repairs are counted in ``Hooks.repaired``: see
``lenient.py``.

``docs/frames.schema.json`` is generated from here by ``tools/generate_schema.py``.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias, cast

import orjson
from msgspec import Meta, Struct, ValidationError, convert
from msgspec.json import schema_components

from bridge.opencode.link.lenient import FrameError, UnknownFrame, read_leniently, repair

PROTOCOL: Final = 1

MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
"""Size, in bytes, of the largest message that either end accepts; a larger one closes the connection with code 1009."""

BATCH_ITEMS: Final = 256
"""Maximum number of items that a sender puts in one ``hooks`` frame."""

BATCH_BYTES: Final = 1024 * 1024
"""At this number of bytes a sender closes a batch; a larger item is sent alone."""

MAX_ITEMS: Final = 200_000
"""Maximum number of items that a receiver accepts in one frame: twice the largest possible window."""

_LARGE_BYTES: Final = 256 * 1024

MAX_SEQ: Final = 2**53 - 1
"""JavaScript's largest safe integer."""

Role: TypeAlias = Literal["shim", "control"]
ByeReason: TypeAlias = Literal[
    "draining", "idle", "disposed", "protocol", "auth", "upgrade", "unsupported", "replaced", "window"
]
"""Why a link ends; ``docs/protocol.md`` says which end sends which reason, and how the other end reacts."""


# --- the hot path: plain dataclasses, checked by hand -----------------------------------------------


@dataclass(slots=True)  # not frozen, because creating a frozen dataclass takes four times as long
class HookItem:
    """One call of one OpenCode hook. ``t`` is the hook's own time, ms since 1970 UTC."""

    hook: Annotated[str, Meta(min_length=1, max_length=200)]
    t: Annotated[int, Meta(ge=0, le=MAX_SEQ)]
    input: Any = None
    output: Any = None


@dataclass(slots=True)
class Hooks:
    """Items with consecutive seqs, beginning with ``first_seq``; acknowledged when they are durable."""

    first_seq: Annotated[int, Meta(ge=1, le=MAX_SEQ)]
    items: list[HookItem]
    type: Literal["hooks"] = "hooks"
    repaired: int = 0
    """Number of values that were changed to make the frame readable. This field is not sent."""


@dataclass(slots=True)
class Lossy:
    """Items without seqs, which may be lost and are never acknowledged or stored."""

    items: list[HookItem]
    type: Literal["lossy"] = "lossy"


# --- everything else: msgspec ------------------------------------------------------------------------

Hex64 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]
HexId = Annotated[str, Meta(pattern=r"^[0-9a-f]{16,64}$(?!\n)")]
Name = Annotated[str, Meta(max_length=200)]
Place = Annotated[str, Meta(max_length=8192)]
Seq = Annotated[int, Meta(ge=0, le=MAX_SEQ)]
Pid = Annotated[int, Meta(ge=0, le=2**31)]
CallId = Annotated[str, Meta(max_length=100)] | int


class _Frame(Struct, frozen=True, tag_field="type"):
    type: ClassVar[str]

    def wire(self) -> dict[str, Any]:
        """The frame's fields in the form in which they are sent, without optional fields that are not set."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return {"type": self.type} | {name: value for name, value in fields.items() if value is not None}


class Hello(_Frame, frozen=True, tag="hello"):
    """The first frame of a connection, from the shim or the command line."""

    type: ClassVar[str] = "hello"

    role: Role
    protocol: Annotated[int, Meta(ge=0, le=MAX_SEQ)]
    nonce: Hex64


class Challenge(_Frame, frozen=True, tag="challenge"):
    """The sidecar proves that it holds the token, and asks the peer to prove the same."""

    type: ClassVar[str] = "challenge"

    protocol: Annotated[int, Meta(ge=0, le=MAX_SEQ)]
    nonce: Hex64
    proof: Hex64
    sidecar_version: Name


@dataclass(frozen=True, slots=True)
class ShimIdentity:
    """The plugin instance and OpenCode process that a link belongs to.

    ``boot_id`` names the process (or, for a played recording, the file), and ``instance`` names the plugin copy; each
    pair of these has its own sequence of seqs. ``last_seq`` is the highest seq that the shim is
    about to send, because no sidecar has acknowledged it; 0 if all are acknowledged.
    """

    shim_version: str
    boot_id: str
    instance: str
    pid: int
    project: str
    directory: str
    worktree: str
    opencode_version: str
    last_seq: int
    service: str = ""
    """The registration file of the OpenCode 2 service that the plugin runs in; empty in OpenCode 1."""
    scope: tuple[str, ...] = ()
    """The directories whose sessions are recorded; empty for all."""
    headless: str = ""
    """The id that a headless OpenCode 1 was started with; empty in a person's own."""
    kernel: str = ""
    """A keyed digest of what the system allows the process."""
    environment: str = ""
    """A keyed digest of its variables, without those that only name a terminal."""
    pid_space: str = ""
    """The pid namespace in which ``pid`` counts; empty if the system has none."""
    program: str = ""
    """The program that the process runs."""


class Identify(_Frame, frozen=True, tag="identify"):
    """The peer's proof that it holds the token. A shim fills every field except ``client_version``; the command line
    fills only ``client_version``, ``proof`` and ``pid``.
    """

    type: ClassVar[str] = "identify"

    proof: Hex64
    pid: Pid
    client_version: Name | None = None
    shim_version: Name | None = None
    boot_id: HexId | None = None
    instance: HexId | None = None
    project: Place | None = None
    directory: Place | None = None
    worktree: Place | None = None
    opencode_version: Name | None = None
    last_seq: Seq | None = None
    service: Place | None = None
    scope: tuple[Place, ...] | None = None
    headless: Name | None = None
    kernel: Name | None = None
    environment: Name | None = None
    pid_space: Name | None = None
    program: Place | None = None

    @property
    def shim(self) -> ShimIdentity | None:
        """The shim's fields, or ``None`` if a required one is missing.

        Fields that a shim may not know yet (the project, OpenCode's version) are empty if they are missing.
        """
        if self.shim_version is None or self.boot_id is None or self.instance is None or self.last_seq is None:
            return None
        return ShimIdentity(
            shim_version=self.shim_version,
            boot_id=self.boot_id,
            instance=self.instance,
            pid=self.pid,
            project=self.project or "",
            directory=self.directory or "",
            worktree=self.worktree or "",
            opencode_version=self.opencode_version or "",
            last_seq=self.last_seq,
            service=self.service or "",
            scope=self.scope or (),
            headless=self.headless or "",
            kernel=self.kernel or "",
            environment=self.environment or "",
            pid_space=self.pid_space or "",
            program=self.program or "",
        )


class Welcome(_Frame, frozen=True, tag="welcome"):
    """The handshake is complete. The shim resends the items that it still holds above ``acked_seq``."""

    type: ClassVar[str] = "welcome"

    sidecar_boot: Name
    sidecar_version: Name
    acked_seq: Seq
    window: Annotated[int, Meta(ge=1, le=1_000_000)]
    context: dict[str, Any]


class Ack(_Frame, frozen=True, tag="ack"):
    """A cumulative acknowledgement: every item up to ``seq`` is durable, or is known to produce no event."""

    type: ClassVar[str] = "ack"

    seq: Seq


class Call(_Frame, frozen=True, tag="call"):
    """The sidecar asks the shim to run a method of OpenCode's in-process client."""

    type: ClassVar[str] = "call"

    id: CallId
    method: Name
    args: dict[str, Any]


class ErrorBody(Struct, frozen=True, omit_defaults=True):
    """Why a call, request or tool failed. ``status`` is OpenCode's HTTP status, if known."""

    code: Name
    message: str
    status: int | None = None


class Result(_Frame, frozen=True, tag="result"):
    """The answer to a ``call``, ``request`` or ``tool``: a value, null included, or an error."""

    type: ClassVar[str] = "result"

    id: CallId
    value: Any = None
    error: ErrorBody | None = None

    def __post_init__(self) -> None:
        if self.error is not None and self.value is not None:
            raise ValueError("a result must have a value or an error, not both")

    def wire(self) -> dict[str, Any]:
        if self.error is None:
            return {"type": "result", "id": self.id, "value": self.value}
        error = {name: getattr(self.error, name) for name in self.error.__struct_fields__}
        present = {name: value for name, value in error.items() if value is not None}
        return {"type": "result", "id": self.id, "error": present}


class Request(_Frame, frozen=True, tag="request"):
    """A request from the command line to the sidecar."""

    type: ClassVar[str] = "request"

    id: CallId
    method: Name
    args: dict[str, Any]


class Tool(_Frame, frozen=True, tag="tool"):
    """A call of a plugin's tool, sent to the sidecar."""

    type: ClassVar[str] = "tool"

    id: CallId
    name: Name
    args: dict[str, Any]
    context: dict[str, Any]


class Context(_Frame, frozen=True, tag="context"):
    """Replaces the shim's local copy of the context, which tells the shim, for example, whether to send lossy items."""

    type: ClassVar[str] = "context"

    context: dict[str, Any]


class Bye(_Frame, frozen=True, tag="bye"):
    """The last frame from an end of the link that closes on purpose. ``detail`` explains ``reason`` in words."""

    type: ClassVar[str] = "bye"

    reason: ByeReason
    detail: Annotated[str, Meta(max_length=1000)] | None = None


Frame: TypeAlias = (
    Hello | Challenge | Identify | Welcome | Hooks | Ack | Call | Result | Request | Tool | Context | Lossy | Bye
)

_MODELS: Final[dict[str, type[_Frame]]] = {
    model.type: model for model in (Hello, Challenge, Identify, Welcome, Ack, Call, Result, Request, Tool, Context, Bye)
}


def json_schema() -> dict[str, Any]:
    models = (*_MODELS.values(), Hooks, Lossy)
    references, definitions = schema_components(models, ref_template="#/$defs/{name}")
    for model in models:
        definition = definitions[model.__name__]
        definition["properties"].pop("repaired", None)
        definition["properties"]["type"] = {"const": model.__name__.lower()}
        definition["required"] = ["type", *(name for name in definition["required"] if name != "type")]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Durable Stream link protocol {PROTOCOL}",
        "oneOf": list(references),
        "$defs": definitions,
    }


def decode(message: str | bytes) -> Frame:
    """Read one message.

    Raises:
        FrameError: the message is not UTF-8, not JSON, not an object, or lacks a field of its type.
        UnknownFrame: the protocol has no frame of this type.
    """
    if len(message) < _LARGE_BYTES or not gc.isenabled():
        return _decode(message)
    # Pause the garbage collector, which would scan the millions of values in a large message again and again.
    gc.disable()
    try:
        return _decode(message)
    finally:
        gc.enable()


def _decode(message: str | bytes) -> Frame:
    repaired = 0
    try:
        obj = orjson.loads(message)
    except ValueError:
        obj, repaired = read_leniently(message)
    if type(obj) is not dict:
        raise FrameError("a frame must be a JSON object")
    kind = obj.get("type")
    if kind == "hooks":
        first_seq = obj.get("first_seq")
        if type(first_seq) is not int or not 1 <= first_seq <= MAX_SEQ:
            raise FrameError("hooks.first_seq must be an integer of at least 1")
        return Hooks(first_seq, _items(obj, "hooks"), repaired=repaired)
    if kind == "lossy":
        return Lossy(_items(obj, "lossy"))
    model = _MODELS.get(kind) if type(kind) is str else None
    if model is None:
        # Do not quote the frame's type in the error, because the type could be any text, even payload.
        raise UnknownFrame("unknown frame type") if type(kind) is str else FrameError("type must be a string")
    try:
        return cast("Frame", convert(obj, model, strict=True))
    except ValidationError as error:
        # The validator's reason may quote payload, so report only where the fault is.
        where = str(error).rpartition(" - at `$")[2].rstrip("`") if " - at `$" in str(error) else ""
        raise FrameError(f"{kind}{where}: does not match the protocol") from None


def encode(frame: Frame) -> str:
    """Write one frame as the text of one message. Values that JSON cannot hold are repaired in the same way as in
    ``decode``."""
    if isinstance(frame, _Frame):
        return _dumps(frame.wire())
    items = [_item_fields(item) for item in frame.items]
    if isinstance(frame, Hooks):
        return _dumps({"type": "hooks", "first_seq": frame.first_seq, "items": items})
    return _dumps({"type": "lossy", "items": items})


def batches(
    first_seq: int, items: Sequence[HookItem], *, max_items: int = BATCH_ITEMS, max_bytes: int = BATCH_BYTES
) -> Iterator[tuple[int, str]]:
    """Split ``items`` into ``hooks`` messages; yield (last seq in the message, its text), in order.

    A message holds at most ``max_items`` items and about ``max_bytes``; a larger item is sent alone. Without items,
    nothing is yielded.
    """
    texts: list[str] = []
    size = 0
    start = first_seq
    for seq, item in enumerate(items, first_seq):
        text = _dumps(_item_fields(item))
        if texts and (len(texts) >= max_items or size + len(text) > max_bytes):
            yield seq - 1, f'{{"type":"hooks","first_seq":{start},"items":[{",".join(texts)}]}}'
            texts, size, start = [], 0, seq
        texts.append(text)
        size += len(text)
    if texts:
        last = start + len(texts) - 1
        yield last, f'{{"type":"hooks","first_seq":{start},"items":[{",".join(texts)}]}}'


def _items(obj: dict[str, Any], kind: str) -> list[HookItem]:
    raw = obj.get("items")
    if type(raw) is not list:
        raise FrameError(f"{kind}.items must be a list")
    if len(raw) > MAX_ITEMS:
        raise FrameError(f"{kind}.items must not have more than {MAX_ITEMS} elements")
    items = []
    for index, entry in enumerate(raw):
        if type(entry) is not dict:
            raise FrameError(f"{kind}.items.{index} must be an object")
        hook, t = entry.get("hook"), entry.get("t")
        if type(hook) is not str or not 0 < len(hook) <= 200:
            raise FrameError(f"{kind}.items.{index}.hook must be a string of 1 to 200 characters")
        if type(t) is not int:
            if type(t) is not float:
                raise FrameError(f"{kind}.items.{index}.t must be a number")
            t = int(t)  # ``int`` cannot fail here, because neither JSON reader lets NaN or an infinity through
        if not 0 <= t <= MAX_SEQ:
            raise FrameError(f"{kind}.items.{index}.t must be milliseconds since 1970")
        items.append(HookItem(hook, t, entry.get("input"), entry.get("output")))
    return items


def _item_fields(item: HookItem) -> dict[str, Any]:
    return {"hook": item.hook, "t": item.t, "input": item.input, "output": item.output}


def _dumps(value: dict[str, Any]) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # orjson's writer refuses lone surrogates, huge integers and deep nesting
        try:
            return orjson.dumps(repair(value)).decode()
        except TypeError as error:
            raise FrameError(f"a value cannot be expressed as JSON ({type(error).__name__})") from None
