"""Hand-made websocket bytes, valid and invalid: a library would not send the invalid ones."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable
from random import Random
from typing import Any, NoReturn

from bridge.opencode.link.frames import ShimIdentity
from bridge.opencode.link.protocol import proof
from tests.torture.hostile import hooks_corpus, mutate
from tests.torture.sidecars import HANG_S

MASK = b"\x12\x34\x56\x78"
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


def masked(payload: bytes, mask: bytes = MASK) -> bytes:
    """``payload``, masked as a client must send it."""
    if not payload:
        return b""
    size = len(payload)
    pattern = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(pattern, "big")).to_bytes(size, "big")


def frame(
    payload: bytes, opcode: int = TEXT, *, fin: bool = True, reserved: int = 0, length: int | None = None
) -> bytes:
    """One masked frame. ``length`` announces a length other than the payload's, in 64 bits."""
    first = (0x80 if fin else 0) | reserved << 4 | opcode
    size = len(payload)
    if length is not None:
        head = struct.pack("!BBQ", first, 0xFF, length)
    elif size < 126:
        head = struct.pack("!BB", first, 0x80 | size)
    elif size < 65536:
        head = struct.pack("!BBH", first, 0xFE, size)
    else:
        head = struct.pack("!BBQ", first, 0xFF, size)
    return head + MASK + masked(payload)


def unmasked(payload: bytes, opcode: int = TEXT) -> bytes:
    """One short unmasked frame, as only a server may send."""
    return struct.pack("!BB", 0x80 | opcode, len(payload[:125])) + payload[:125]


def upgrade(port: int, *lines: str, path: str = "/") -> bytes:
    """An opening request; ``lines`` are further headers."""
    head = [
        f"GET {path} HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version: 13",
        *lines,
    ]
    return ("\r\n".join(head) + "\r\n\r\n").encode("latin-1")


class Closed(Exception):
    """The sidecar closed the connection; ``code`` is the close code, if it sent one."""

    def __init__(self, code: int | None = None) -> None:
        super().__init__(code)
        self.code = code


class RawLink:
    """A blocking socket to a sidecar, with as much of the handshake as requested."""

    def __init__(self, port: int, token: str, *, deaf: bool = False) -> None:
        self.port, self.token = port, token
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.socket.settimeout(HANG_S)
        if deaf:  # else the kernel would read megabytes for us
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.connect(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._data = b""

    def __enter__(self) -> RawLink:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes. Raises ``Closed`` if the sidecar does not accept them."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            raise Closed from None

    def open(self) -> None:
        """Do the opening handshake."""
        self.send(upgrade(self.port))
        while b"\r\n\r\n" not in self._data:
            self._more()
        head, _, self._data = self._data.partition(b"\r\n\r\n")
        if b" 101 " not in head.split(b"\r\n")[0]:
            raise Closed

    def prove(self, identity: ShimIdentity | None) -> None:
        """Go from hello to welcome, as a shim or (without identity) as the command line."""
        role, nonce = ("control" if identity is None else "shim"), "5a" * 32
        self.say(type="hello", role=role, protocol=1, nonce=nonce)
        challenge = json.loads(self.hear())
        right = proof(self.token, role, self.port, nonce, challenge["nonce"])
        fields = {name: getattr(identity, name) for name in identity.__slots__} if identity else {"client_version": "1"}
        self.say(**{"pid": 1, **fields}, type="identify", proof=right)
        assert json.loads(self.hear())["type"] == "welcome"

    def say(self, **fields: Any) -> None:
        """Send one message."""
        self.send(frame(json.dumps(fields).encode()))

    def hear(self) -> bytes:
        """The next message; pongs and the like are skipped."""
        while True:
            opcode, payload = self._frame()
            if opcode in (TEXT, BINARY):
                return payload

    def answers(self) -> None:
        """Ping and wait for the pong, so that everything sent before was read. Raises ``Closed`` otherwise."""
        self.send(frame(b"alive?", PING))
        while self._frame() != (PONG, b"alive?"):
            pass

    def ends(self) -> NoReturn:
        """Send nothing more, not even the rest of a message; the sidecar must close then. Raises ``Closed``."""
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            raise Closed from None
        raise Closed(self.until_closed())

    def until_closed(self) -> int | None:
        """Read to the end and return the close code."""
        try:
            while True:
                self._frame()
        except Closed as closed:
            return closed.code

    def _frame(self) -> tuple[int, bytes]:
        while len(self._data) < 2:
            self._more()
        size, start = self._data[1] & 0x7F, 2
        if size == 126:
            start = 4
        elif size == 127:
            start = 10
        while len(self._data) < start:
            self._more()
        if start > 2:
            size = int.from_bytes(self._data[2:start], "big")
        while len(self._data) < start + size:
            self._more()
        opcode, payload = self._data[0] & 0x0F, self._data[start : start + size]
        self._data = self._data[start + size :]
        if opcode == CLOSE:
            raise Closed(int.from_bytes(payload[:2], "big") if len(payload) >= 2 else None)
        return opcode, payload

    def _more(self) -> None:
        try:
            data = self.socket.recv(65536)
        except ConnectionResetError:
            data = b""
        if not data:
            raise Closed
        self._data += data


# --- what is sent to a sidecar that expects something else ---


_TOO_LONG = (2**63, 2**64 - 1, 2**63 - 1, 2**40, 2**31, 17 * 2**20)
_BAD_UTF8 = (b"\xff\xfe", b"\xc0\xaf", b"\xed\xa0\x80", b'{"type":"\xf5"}')
_BAD_CODES = (0, 999, 1005, 1006, 5000, 65535)

_FRAMES: tuple[Callable[[Random, bytes], bytes], ...] = (
    lambda random, text: frame(text, reserved=random.randrange(1, 8)),
    lambda random, text: unmasked(text),
    lambda random, text: frame(text, random.choice((3, 4, 7, 11, 15))),
    lambda random, text: frame(b"", length=random.choice(_TOO_LONG)),
    lambda random, text: frame(random.randbytes(40)),
    lambda random, text: frame(random.choice(_BAD_UTF8), BINARY),
    lambda random, text: frame(text, random.choice((CLOSE, PING, PONG))),  # a control frame of more than 125 bytes
    lambda random, text: frame(text[:9], random.choice((CLOSE, PING)), fin=False),
    lambda random, text: frame(text, 0),  # continues with what never began
    lambda random, text: frame(text, fin=False) + frame(text),  # a message within a message
    lambda random, text: frame(b"", fin=False) + frame(b"", 0, fin=False) * 5000,  # a bomb of empty fragments
    lambda random, text: frame(struct.pack("!H", random.choice(_BAD_CODES)), CLOSE),
    lambda random, text: frame(random.choice((b"\x03", b"")), CLOSE),
    lambda random, text: mutate(random, frame(text), json_share=0.0)[:2000],
)

_REQUESTS: tuple[Callable[[Random, int], bytes], ...] = (
    lambda random, port: upgrade(port, "Origin: http://127.0.0.1"),
    lambda random, port: upgrade(port).replace(b"127.0.0.1", random.choice((b"evil.example", b"127.0.0.1.evil", b""))),
    lambda random, port: upgrade(port, *("X: y" for _ in range(300))),
    lambda random, port: upgrade(port, "X: " + "y" * 20_000),
    lambda random, port: upgrade(port, path="/" + "z" * 20_000),
    lambda random, port: random.randbytes(random.randrange(1, 300)) + b"\r\n\r\n",
    lambda random, port: b"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
    lambda random, port: mutate(random, upgrade(port), json_share=0.0)[:3000] + b"\r\n\r\n",
)


def hostile_bytes(random: Random) -> bytes:
    """Bytes for an open websocket with a fault at the frame level."""
    return random.choice(_FRAMES)(random, random.choice(hooks_corpus())[:400])


def hostile_request(random: Random, port: int) -> bytes:
    """An opening request with a fault."""
    return random.choice(_REQUESTS)(random, port)
