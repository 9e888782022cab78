"""Link protocol 1 without I/O: data in, events out, messages to send.

``SidecarLink`` is the sidecar's end of one connection, and ``ClientLink`` is the other end, in either role: ``shim``
(``durable-stream play``, in place of the plugin) or ``control`` (the command line). Neither end uses a clock, a socket
or randomness. The caller supplies nonces and the token, and delivers what ``data_to_send`` returns, in order. After the
event ``Closed``, the caller sends the remaining messages and closes the connection.

The states and their tables, the events and the errors are in ``protocol.py``.
The client sends no user data before it has verified the sidecar's proof. If
the proof is wrong, the client sends nothing more, not even a ``bye``.

Peer input never raises: a protocol violation yields the event ``Closed``.
"""

from __future__ import annotations

import hmac
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bridge.opencode.link.frames import (
    MAX_FRAME_BYTES,
    MAX_SEQ,
    PROTOCOL,
    Ack,
    Bye,
    ByeReason,
    Call,
    Challenge,
    Context,
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
    batches,
    decode,
    encode,
)
from bridge.opencode.link.lenient import FrameError, UnknownFrame
from bridge.opencode.link.protocol import (
    CLIENT,
    OPEN,
    SIDECAR,
    Closed,
    Event,
    Identified,
    LocalProtocolError,
    Refused,
    RemoteError,
    State,
    Table,
    WindowError,
    proof,
)
from bridge.opencode.link.window import DEFAULT_WINDOW, AckWindow


class _Link:
    table: Table

    def __init__(self, state: State) -> None:
        self.state = state
        self._out: list[str] = []

    @property
    def is_open(self) -> bool:
        """True after the handshake, until either end says bye."""
        return self.state in (State.OPEN_SHIM, State.OPEN_CONTROL)

    @property
    def pending(self) -> int:
        return len(self._out)

    def data_to_send(self) -> list[str]:
        """Return the messages to send now, in order; each message is returned only once."""
        out, self._out = self._out, []
        return out

    def receive(self, message: str | bytes) -> list[Event]:
        """Take one message; return its events, if any. Never raises because of a peer's message."""
        if self.state is State.CLOSED:
            return []
        try:
            frame = decode(message)
        except UnknownFrame as error:
            return self._unknown(error)
        except FrameError as error:
            return self._fail("protocol", error.reason)
        after = self.table[self.state].get(type(frame))
        if after is None:
            return self._fail("protocol", f"a {frame.type} frame is not allowed in state {self.state.value}")
        if isinstance(frame, Bye):
            self.state = after
            return [Closed(frame.reason, frame.detail or "", by_peer=True)]
        return self._take(frame, after)

    def bye(self, reason: ByeReason, detail: str | None = None) -> None:
        """Send ``bye`` and close. Nothing is sent after ``bye``. Does nothing on a closed link."""
        if self.state not in (State.LEAVING, State.CLOSED):
            self._send(Bye(reason=reason, detail=detail))
        self.state = State.CLOSED

    def result(self, call_id: str | int, value: Any = None, error: RemoteError | None = None) -> None:
        """Answer a call, request or tool. Does nothing on a closed link, where nobody is waiting for the answer."""
        if self.is_open:
            body = None if error is None else error.body()
            self._send(Result(id=call_id, value=value if error is None else None, error=body))

    def _send(self, frame: Frame) -> None:
        text = encode(frame)
        # A text has at least as many bytes as characters, so the peer would close the link (code 1009) on this frame.
        if len(text) > MAX_FRAME_BYTES:
            raise LocalProtocolError(f"a {frame.type} frame of {len(text)} characters exceeds the limit")
        self._out.append(text)

    def _fail(self, reason: ByeReason, detail: str) -> list[Event]:
        # Send the detail only with "unsupported": the detail of a violation may quote the peer's message.
        self.bye(reason, detail if reason == "unsupported" else None)
        return [Closed(reason, detail, by_peer=False)]

    def _need(self, *states: State) -> None:
        if self.state not in states:
            raise LocalProtocolError(f"this call is not allowed while the link is in state {self.state.value}")

    def _unknown(self, error: UnknownFrame) -> list[Event]:
        return self._fail("protocol", error.reason)

    def _take(self, frame: Frame, after: State) -> list[Event]:
        raise NotImplementedError


class SidecarLink(_Link):
    """The sidecar's end of one connection.

    ``nonce`` is 64 hex characters, fresh for each connection; ``boot`` identifies
    this run of the sidecar.
    """

    table = SIDECAR

    def __init__(
        self, *, token: str, port: int, nonce: str, boot: str, version: str, window: int = DEFAULT_WINDOW
    ) -> None:
        super().__init__(State.AWAIT_HELLO)
        self.role: Role | None = None
        self.acks = AckWindow(0, window)
        self._token, self._port, self._nonce = token, port, nonce
        self._boot, self._version = boot, version
        self._client_nonce = ""
        self._client_protocol = PROTOCOL
        self._ack_sent = 0

    def welcome(self, *, acked_seq: int = 0, context: Mapping[str, Any] | None = None) -> None:
        """Open the link. ``acked_seq``: this instance's highest seq known to be durable; 0 if unknown."""
        self._need(State.AWAIT_WELCOME)
        assert self.role is not None
        self.acks = AckWindow(acked_seq, self.acks.window)
        self._ack_sent = acked_seq
        self._send(
            Welcome(
                sidecar_boot=self._boot,
                sidecar_version=self._version,
                acked_seq=acked_seq,
                window=self.acks.window,
                context=dict(context or {}),
            )
        )
        self.state = OPEN[self.role]

    def call(self, call_id: str, method: str, args: Mapping[str, Any]) -> None:
        self._need(State.OPEN_SHIM)
        self._send(Call(id=call_id, method=method, args=dict(args)))

    def push_context(self, context: Mapping[str, Any]) -> None:
        self._need(State.OPEN_SHIM)
        self._send(Context(context=dict(context)))

    def finish(self, seqs: Iterable[int]) -> bool:
        """Mark items as finished; return true if ``acks.acked`` moved. Allowed even after the link has closed.

        Raises:
            ValueError: an item was never received.
        """
        before = self.acks.acked
        for seq in seqs:
            self.acks.finish(seq)
        return self.acks.acked > before

    def data_to_send(self) -> list[str]:
        """Like the base class, but add, at the end, one cumulative ack for all items finished since the last ack."""
        self._ack()
        return super().data_to_send()

    def bye(self, reason: ByeReason, detail: str | None = None) -> None:
        self._ack()
        super().bye(reason, detail)

    def leave(self, reason: ByeReason) -> None:
        """Send ``bye`` to a shim, but still accept hooks that are already on their way, without acknowledging them. For
        other peers, this is the same as ``bye``.

        The link closes when the peer closes it, or when ``bye`` is called, which then sends nothing.
        """
        was = self.state
        self.bye(reason)
        if was is State.OPEN_SHIM:
            self.state = State.LEAVING

    def _ack(self) -> None:
        if self.state is State.OPEN_SHIM and self.acks.acked > self._ack_sent:
            self._ack_sent = self.acks.acked
            self._send(Ack(seq=self._ack_sent))

    def _take(self, frame: Frame, after: State) -> list[Event]:
        match frame:
            case Hooks():
                return self._hooks(frame)
            case Lossy() | Result() | Request() | Tool():
                return [frame]
            case Hello():
                return self._hello(frame, after)
            case Identify():
                return self._identify(frame, after)
            case _:  # pragma: no cover - the table lets nothing else through
                raise AssertionError(frame.type)

    def _hello(self, frame: Hello, after: State) -> list[Event]:
        # Refuse another protocol version only after the handshake, which all versions share, so that the peer can trust
        # the refusal and an unauthenticated peer cannot cause it.
        self.role, self._client_nonce, self._client_protocol = frame.role, frame.nonce, frame.protocol
        self._send(
            Challenge(
                protocol=PROTOCOL,
                nonce=self._nonce,
                proof=proof(self._token, "sidecar", self._port, frame.nonce, self._nonce),
                sidecar_version=self._version,
            )
        )
        self.state = after
        return []

    def _identify(self, frame: Identify, after: State) -> list[Event]:
        assert self.role is not None
        expected = proof(self._token, self.role, self._port, self._client_nonce, self._nonce)
        if not hmac.compare_digest(expected, frame.proof):
            return self._fail("auth", "wrong proof")
        if self._client_protocol != PROTOCOL:
            version = frame.shim_version or frame.client_version or "unknown"
            refused = Refused(self.role, version, frame.pid, self._client_protocol)
            return [refused, *self._fail("unsupported", self._why_unsupported(version))]
        shim = frame.shim if self.role == "shim" else None
        if self.role == "shim" and shim is None:
            return self._fail("protocol", "the identify frame lacks shim fields")
        self.state = after
        version = shim.shim_version if shim is not None else frame.client_version or ""
        return [Identified(self.role, shim, version, frame.pid)]

    def _why_unsupported(self, version: str) -> str:
        is_old = self._client_protocol < PROTOCOL
        if self.role == "shim":
            peer = "plugin"
            remedy = (
                "run `durable-stream install`, then restart OpenCode"
                if is_old
                else "the sidecar exits so that the plugin can start its own"
            )
        else:
            peer = "command"
            remedy = (
                "use a durable-stream at least as new as the sidecar"
                if is_old
                else "run `durable-stream stop`, then try again"
            )
        return (
            f"the sidecar ({self._version}) speaks link protocol {PROTOCOL}, but the {peer} ({version[:50]}) speaks "
            f"{self._client_protocol}: {remedy}"
        )

    def _hooks(self, frame: Hooks) -> list[Event]:
        count = len(frame.items)
        if frame.first_seq + count - 1 > MAX_SEQ:
            return self._fail("protocol", "seq exceeds the maximum")
        try:
            known = self.acks.begin(frame.first_seq, count)
        except WindowError as error:
            return self._fail(error.bye, str(error))
        if known and self.acks.acked:
            self._ack_sent = self.acks.acked - 1  # the peer missed the last ack, so send that ack again
        if known == count:
            return []
        return [Hooks(frame.first_seq + known, frame.items[known:], repaired=frame.repaired)]


class ClientLink(_Link):
    """The client's end of one connection: role ``shim`` with an identity, ``control`` without one. Queues ``hello`` at
    once."""

    table = CLIENT

    def __init__(
        self,
        *,
        token: str,
        port: int,
        nonce: str,
        version: str,
        pid: int,
        shim: ShimIdentity | None = None,
    ) -> None:
        super().__init__(State.AWAIT_CHALLENGE)
        self.role: Role = "control" if shim is None else "shim"
        self.welcomed: Welcome | None = None
        self.acked = 0
        self.last_sent = 0
        self.unknown = 0
        """Number of ignored frames of unknown types, which a newer sidecar may send."""
        self._token, self._port, self._nonce = token, port, nonce
        self._version, self._pid, self._shim = version, pid, shim
        # Each entry is the last seq and the number of unacknowledged items of one run that was sent.
        self._flight: deque[tuple[int, int]] = deque()
        self._in_flight = 0
        self._send(Hello(role=self.role, protocol=PROTOCOL, nonce=nonce))

    @property
    def in_flight(self) -> int:
        return self._in_flight

    @property
    def room(self) -> int:
        """How many more items the window accepts now; 0 before the sidecar's ``welcome``."""
        return 0 if self.welcomed is None else max(0, self.welcomed.window - self._in_flight)

    def send_hooks(self, first_seq: int, items: Sequence[HookItem]) -> None:
        """Send ``items`` with seqs from ``first_seq``, split into frames of the usual size.

        Raises:
            LocalProtocolError: the link is not open, ``first_seq`` is not above the last
                seq sent, or there is no ``room``. Nothing was queued.
        """
        self._need(State.OPEN_SHIM)
        if first_seq <= self.last_sent:
            raise LocalProtocolError(f"seq {first_seq} was already sent (last: {self.last_sent})")
        if len(items) > self.room:
            raise LocalProtocolError(f"{len(items)} items do not fit into the window, which has room for {self.room}")
        for last_seq, text in batches(first_seq, items):
            self._out.append(text)
            self._flight.append((last_seq, last_seq - max(first_seq - 1, self.last_sent)))
            self._in_flight += self._flight[-1][1]
            self.last_sent = last_seq

    def send_lossy(self, items: Sequence[HookItem]) -> None:
        self._need(State.OPEN_SHIM)
        self._send(Lossy(list(items)))

    def request(self, request_id: str, method: str, args: Mapping[str, Any]) -> None:
        self._need(State.OPEN_CONTROL)
        self._send(Request(id=request_id, method=method, args=dict(args)))

    def tool(self, tool_id: str, name: str, args: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        self._need(State.OPEN_SHIM)
        self._send(Tool(id=tool_id, name=name, args=dict(args), context=dict(context)))

    def _unknown(self, error: UnknownFrame) -> list[Event]:
        self.unknown += 1
        return []

    def _take(self, frame: Frame, after: State) -> list[Event]:
        match frame:
            case Ack():
                return self._acked(frame.seq)
            case Result() | Call() | Context():
                return [frame]
            case Challenge():
                return self._challenge(frame, after)
            case Welcome():
                self.welcomed = frame
                self.acked = frame.acked_seq
                self.state = OPEN[self.role]
                return [frame]
            case _:  # pragma: no cover - the table lets nothing else through
                raise AssertionError(frame.type)

    def _challenge(self, frame: Challenge, after: State) -> list[Event]:
        expected = proof(self._token, "sidecar", self._port, self._nonce, frame.nonce)
        if not hmac.compare_digest(expected, frame.proof):
            self.state = State.CLOSED
            return [Closed("impostor", "wrong proof", by_peer=False)]
        if frame.protocol != PROTOCOL:
            detail = (
                f"the sidecar ({frame.sidecar_version}) speaks link protocol {frame.protocol}, but this client speaks "
                f"{PROTOCOL}"
            )
            return self._fail("unsupported", detail)
        own = proof(self._token, self.role, self._port, self._nonce, frame.nonce)
        if self._shim is None:
            self._send(Identify(proof=own, pid=self._pid, client_version=self._version))
        else:
            shim = self._shim
            self._send(Identify(proof=own, **{name: getattr(shim, name) for name in shim.__slots__}))
        self.state = after
        return []

    def _acked(self, seq: int) -> list[Event]:
        if seq > max(self.last_sent, self.acked):
            return self._fail("protocol", f"seq {seq} was acknowledged, but the last one sent was {self.last_sent}")
        while self._flight and self._flight[0][0] <= seq:
            self._in_flight -= self._flight.popleft()[1]
        if self._flight and seq > self.acked:
            # The ack falls within a run. Seqs within a run are consecutive, so the number of open items is known.
            last, count = self._flight[0]
            left = min(count, last - seq)
            self._flight[0] = (last, left)
            self._in_flight -= count - left
        self.acked = max(self.acked, seq)
        return [Ack(seq=self.acked)]
