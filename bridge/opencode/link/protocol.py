"""The link's states, the tables that lead from one to the next, its events, its errors, and its proof.

The life of a link (``SIDECAR`` and ``CLIENT`` below)::

    sidecar  AWAIT_HELLO --hello--> AWAIT_IDENTIFY --identify--> AWAIT_WELCOME --(welcome)--> OPEN_*
             OPEN_SHIM --(bye draining, upgrade)--> LEAVING: what is on its way is still taken
    client                          AWAIT_CHALLENGE --challenge--> AWAIT_WELCOME --welcome--> OPEN_*
    both     any --bye, or a broken rule--> CLOSED

A frame without an entry in its row breaks the protocol.

::

    LinkError
    ├── LocalProtocolError      this side used the link wrongly: a bug here, not the peer's doing
    ├── WindowError             the peer broke the rules of seqs; nothing was taken
    │   ├── SeqWentBack         a seq that is neither above all received ones nor finished
    │   └── WindowOverrun       more than twice the window is unacknowledged
    └── RemoteError             the other side answered with an error: code, message
        ├── CallError           to a ``call`` (sidecar to shim)
        └── RequestError        to a ``request`` (command line to sidecar)
"""

from __future__ import annotations

import enum
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from bridge.opencode.link.frames import (
    Ack,
    Bye,
    ByeReason,
    Call,
    Challenge,
    Context,
    ErrorBody,
    Frame,
    Hello,
    HookItem,
    Hooks,
    Identify,
    Lossy,
    Request,
    Result,
    Role,
    ShimIdentity,
    Tool,
    Welcome,
)

MAX_ERROR_TEXT: Final = 4096
"""Longest error message on the wire, in characters."""


# --- errors -----------------------------------------------------------------------------------------


class LinkError(Exception):
    """Root of the link's errors."""


class LocalProtocolError(LinkError):
    """This side asked its link for something its state does not allow."""


class WindowError(LinkError):
    """The peer broke the rules of seqs."""


class SeqWentBack(WindowError):
    """``seq`` is not above what was received on this connection and is not finished either."""

    def __init__(self, seq: int, received: int) -> None:
        super().__init__(seq, received)
        self.seq, self.received = seq, received

    def __str__(self) -> str:
        return f"seq {self.seq} came after seq {self.received}"


class WindowOverrun(WindowError):
    """``unacked`` items would be unacknowledged, more than twice the ``window``."""

    def __init__(self, unacked: int, window: int) -> None:
        super().__init__(unacked, window)
        self.unacked, self.window = unacked, window

    def __str__(self) -> str:
        return f"{self.unacked} items unacknowledged with a window of {self.window}"


class RemoteError(LinkError):
    """The other side's answer is an error, or none came. ``status`` is an HTTP status where one is known."""

    def __init__(self, code: str, message: str, status: int | None = None) -> None:
        super().__init__(code, message, status)
        self.code, self.message, self.status = code, message, status

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" if self.message else self.code

    def body(self) -> ErrorBody:
        """The error as it travels: text cut to 4 KiB, and always encodable."""
        message = self.message[:MAX_ERROR_TEXT].encode(errors="replace").decode()
        return ErrorBody(code=self.code, message=message, status=self.status)


class CallError(RemoteError):
    """A call failed: ``unknown_method``, ``opencode``, ``unavailable``, ``timeout`` or ``closed``."""


class RequestError(RemoteError):
    """A request failed. ``code`` is one of those of docs/operations.md; ``message`` is a sentence by itself."""

    def __str__(self) -> str:
        return self.message or self.code


# --- events -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Identified:
    """Sidecar: the peer's proof is right. Answer with ``welcome`` when ready. ``shim`` is None for control."""

    role: Role
    shim: ShimIdentity | None
    version: str
    pid: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Sidecar: the peer's proof is right, but it speaks ``protocol``, which this side does not. ``Closed`` follows."""

    role: Role
    version: str
    pid: int
    protocol: int


@dataclass(frozen=True, slots=True)
class HooksReceived:
    """Sidecar: new items with consecutive seqs; each must be finished once, in any order."""

    first_seq: int
    items: list[HookItem]
    repaired: int


@dataclass(frozen=True, slots=True)
class LossyReceived:
    """Sidecar: items nobody acknowledges."""

    items: list[HookItem]


@dataclass(frozen=True, slots=True)
class ResultReceived:
    """Either: the answer to the call, request or tool ``id``."""

    id: str | int
    value: Any
    error: ErrorBody | None


@dataclass(frozen=True, slots=True)
class RequestReceived:
    """Sidecar: the command line asks; answer with ``result``."""

    id: str | int
    method: str
    args: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolReceived:
    """Sidecar: a plugin's tool asks; answer with ``result``."""

    id: str | int
    name: str
    args: dict[str, Any]
    context: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Welcomed:
    """Client: the link is open."""

    welcome: Welcome


@dataclass(frozen=True, slots=True)
class Acked:
    """Client: everything up to ``seq`` is durable."""

    seq: int


@dataclass(frozen=True, slots=True)
class CallReceived:
    """Client, role shim: run ``method`` and answer with ``result``."""

    id: str | int
    method: str
    args: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ContextReceived:
    """Client, role shim: the new context, whole."""

    context: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Closed:
    """The link is over. ``impostor``: the other end could not prove itself, and nothing was sent to it.

    ``by_peer``: the peer said bye; otherwise it broke a rule, told by ``detail``.
    """

    reason: ByeReason | Literal["impostor"]
    detail: str
    by_peer: bool


Event: TypeAlias = (
    Identified
    | Refused
    | HooksReceived
    | LossyReceived
    | ResultReceived
    | RequestReceived
    | ToolReceived
    | Welcomed
    | Acked
    | CallReceived
    | ContextReceived
    | Closed
)


# --- the life of a link -----------------------------------------------------------------------------


class State(enum.Enum):
    """Where one end of a link is."""

    AWAIT_HELLO = "await_hello"
    AWAIT_CHALLENGE = "await_challenge"
    AWAIT_IDENTIFY = "await_identify"
    AWAIT_WELCOME = "await_welcome"
    OPEN_SHIM = "open_shim"
    OPEN_CONTROL = "open_control"
    LEAVING = "leaving"
    CLOSED = "closed"


OPEN: Final[dict[Role, State]] = {"shim": State.OPEN_SHIM, "control": State.OPEN_CONTROL}

Table: TypeAlias = Mapping[State, Mapping[type[Frame], State]]

SIDECAR: Final[Table] = {
    State.AWAIT_HELLO: {Hello: State.AWAIT_IDENTIFY, Bye: State.CLOSED},
    State.AWAIT_IDENTIFY: {Identify: State.AWAIT_WELCOME, Bye: State.CLOSED},
    State.AWAIT_WELCOME: {Bye: State.CLOSED},  # left by our own welcome
    State.OPEN_SHIM: {
        Hooks: State.OPEN_SHIM,
        Lossy: State.OPEN_SHIM,
        Result: State.OPEN_SHIM,
        Tool: State.OPEN_SHIM,
        Bye: State.CLOSED,
    },
    State.OPEN_CONTROL: {Request: State.OPEN_CONTROL, Bye: State.CLOSED},
    # Entered by our own bye. The shim may die before it reads that: what it sent until then is taken all the same.
    State.LEAVING: {
        Hooks: State.LEAVING,
        Lossy: State.LEAVING,
        Result: State.LEAVING,
        Tool: State.LEAVING,
        Bye: State.CLOSED,
    },
    State.CLOSED: {},
}
"""What the sidecar may receive, and where it leads."""

CLIENT: Final[Table] = {
    State.AWAIT_CHALLENGE: {Challenge: State.AWAIT_WELCOME, Bye: State.CLOSED},
    State.AWAIT_WELCOME: {Welcome: State.AWAIT_WELCOME, Bye: State.CLOSED},  # left for its role's state
    State.OPEN_SHIM: {
        Ack: State.OPEN_SHIM,
        Call: State.OPEN_SHIM,
        Result: State.OPEN_SHIM,
        Context: State.OPEN_SHIM,
        Bye: State.CLOSED,
    },
    State.OPEN_CONTROL: {Result: State.OPEN_CONTROL, Bye: State.CLOSED},
    State.CLOSED: {},
}
"""What a client may receive, and where it leads."""


def proof(token: str, side: str, port: int, client_nonce: str, sidecar_nonce: str) -> str:
    """That ``side`` ("sidecar", or the role) holds ``token``, for this connection only.

    The port is in it, so that a proof cannot be relayed to another sidecar of
    the same home; the side, so that it cannot be sent back.
    """
    message = f"{side}:{port}:{client_nonce}:{sidecar_nonce}".encode()
    return hmac.new(token.encode(), message, hashlib.sha256).hexdigest()
