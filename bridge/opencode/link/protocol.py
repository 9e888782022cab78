"""The link's states and transition tables, its events, its errors, and its proof.

The states of a link (``SIDECAR`` and ``CLIENT`` below)::

    sidecar  AWAIT_HELLO --hello--> AWAIT_IDENTIFY --identify--> AWAIT_WELCOME --(welcome)--> OPEN_*
             OPEN_SHIM --(bye draining, upgrade)--> LEAVING: frames on their way are still taken
    client                          AWAIT_CHALLENGE --challenge--> AWAIT_WELCOME --welcome--> OPEN_*
    both     any --bye, or a broken rule--> CLOSED

A frame for which the table has no entry in the present state violates the protocol.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from msgspec import Struct

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


# --- errors -----------------------------------------------------------------------------------------


class LinkError(Exception):
    """Root of the link's errors."""


class LocalProtocolError(LinkError):
    """This side misused the link: a bug here, not the peer's fault."""


class WindowError(LinkError):
    """The peer broke the rules for seqs; ``bye`` is the reason for closing the link."""

    def __init__(self, bye: ByeReason, text: str) -> None:
        super().__init__(text)
        self.bye: ByeReason = bye


class RemoteError(LinkError):
    """The other end of the link answered with an error, or did not answer. ``status`` is the HTTP status, if known."""

    def __init__(self, code: str, message: str, status: int | None = None) -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.code, self.message, self.status = code, message, status

    def body(self) -> ErrorBody:
        """The error in the form in which it is sent: the text is cut to 4 KiB and can always be encoded."""
        message = self.message[:MAX_ERROR_TEXT].encode(errors="replace").decode()
        return ErrorBody(code=self.code, message=message, status=self.status)


class CallError(RemoteError):
    """A call failed: ``unknown_method``, ``opencode``, ``unavailable``, ``timeout`` or ``closed``."""


class RequestError(RemoteError):
    """A request failed. ``code`` is listed in docs/operations.md; ``message`` is a complete sentence."""

    def __str__(self) -> str:
        return self.message or self.code


# --- events -----------------------------------------------------------------------------------------


class Identified(Struct, frozen=True):
    """Emitted on the sidecar's side once the peer has proved its identity. Call ``welcome`` when ready. For control,
    ``shim`` is ``None``.
    """

    role: Role
    shim: ShimIdentity | None
    version: str
    pid: int


class Refused(Struct, frozen=True):
    """Emitted on the sidecar's side: the peer has proved its identity but uses an unsupported ``protocol``. ``Closed``
    follows.
    """

    role: Role
    version: str
    pid: int
    protocol: int


class Closed(Struct, frozen=True):
    """The link is closed. ``impostor``: the peer could not prove its identity, and no user data was sent to it.

    ``by_peer``: the peer said bye. Otherwise, the peer broke the rule that ``detail`` describes.
    """

    reason: ByeReason | Literal["impostor"]
    detail: str
    by_peer: bool


Event: TypeAlias = (
    Identified | Refused | Hooks | Lossy | Result | Request | Tool | Welcome | Ack | Call | Context | Closed
)
"""What a link tells its owner. A frame among the events has been received; ``Hooks`` has only new items, each of which
is to be finished once, in any order; ``Ack`` says that everything up to its ``seq`` is durable."""


# --- the states of a link ---------------------------------------------------------------------------


class State(enum.Enum):
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
    State.AWAIT_WELCOME: {Bye: State.CLOSED},  # this state ends when we send ``welcome``
    State.OPEN_SHIM: {
        Hooks: State.OPEN_SHIM,
        Lossy: State.OPEN_SHIM,
        Result: State.OPEN_SHIM,
        Tool: State.OPEN_SHIM,
        Bye: State.CLOSED,
    },
    State.OPEN_CONTROL: {Request: State.OPEN_CONTROL, Bye: State.CLOSED},
    # The sidecar enters this state when it sends `bye`. The shim may die before it reads that `bye`, so what it sent is
    # still accepted.
    State.LEAVING: {
        Hooks: State.LEAVING,
        Lossy: State.LEAVING,
        Result: State.LEAVING,
        Tool: State.LEAVING,
        Bye: State.CLOSED,
    },
    State.CLOSED: {},
}
"""What the sidecar may receive in each state, and the next state."""

CLIENT: Final[Table] = {
    State.AWAIT_CHALLENGE: {Challenge: State.AWAIT_WELCOME, Bye: State.CLOSED},
    # After ``welcome``, the state depends on the role.
    State.AWAIT_WELCOME: {Welcome: State.AWAIT_WELCOME, Bye: State.CLOSED},
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
"""What a client may receive in each state, and the next state."""


def proof(token: str, side: str, port: int, client_nonce: str, sidecar_nonce: str) -> str:
    """Proof that ``side`` ("sidecar", or the role) holds ``token``, valid for this connection only.

    The proof includes the port, so that it cannot be relayed to another sidecar of the same home, and ``side``, so that
    it cannot be sent back to its sender.
    """
    message = f"{side}:{port}:{client_nonce}:{sidecar_nonce}".encode()
    return hmac.new(token.encode(), message, hashlib.sha256).hexdigest()
