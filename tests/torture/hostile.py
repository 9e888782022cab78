"""Hostile input, made from a seed: malformed JSON, and messages of real runs with faults in them."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

from bridge.opencode.link.frames import (
    Ack,
    Bye,
    Call,
    Challenge,
    Context,
    ErrorBody,
    Hello,
    Hooks,
    Identify,
    Lossy,
    Request,
    Result,
    Tool,
    Welcome,
    encode,
)
from tests.bridge.opencode.playing import names, recording

N64 = "0123456789abcdef" * 4
MAX_MESSAGE = 6000
"""Longest message of the corpus; longer hooks of the recordings are passed over."""

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*|true|false|null|\[\]|\{\}')

VALUES: tuple[bytes, ...] = (
    *(b"NaN", b"-Infinity", b"1e999", b"-1e-999", b"-0", b"01", b"1.5", b"9007199254740993", b"-9223372036854775809"),
    *(b"18446744073709551616", b"9" * 400, b"9" * 4400, b"-" + b"9" * 4400, b"true", b"null", b"{}", b"[]", b'""'),
    *(b'"hooks"', b'"\\ud800"', b'"\\udfff\\ud800x"', b'"\\ud83d\\ude00"', b'"\\u0000"', b'"\\x"', b'"\xed\xa0\x80"'),
    *(b'"\xff\xfe"', b'"\xc0\xaf"', b'"\n\x00"', b'"../../../etc/passwd"', b'"__proto__"'),
    *(b'"' + b"long " * 2000 + b'"', b'"ses_x\\r\\nses_y"', b'{"a":1,"a":{"a":2},"a":NaN}'),
    *(b'{"":"","\\ud800":1,"\\udfff":2}', b"[" * 150 + b"]" * 150, b'"', b"\xef\xbb\xbf1"),
)

DEEP: tuple[bytes, ...] = (
    b"[" * 260 + b"1" + b"]" * 260,
    b'{"a":' * 1100 + b'"\\ud800"' + b"}" * 1100,
    b"[" * 3000 + b"]" * 3000,
    b"[" * 5000,
)
"""Slow to repair, so they come rarely."""


def value(random: Random) -> bytes:
    """A JSON value, or something that only looks like one."""
    return random.choice(DEEP if random.random() < 0.01 else VALUES)


@cache
def corpus() -> tuple[bytes, ...]:
    """A message of each type, and hooks as they came from real runs."""
    shim: dict[str, Any] = {
        "shim_version": "0.1",
        "boot_id": "ab" * 16,
        "instance": "cd" * 8,
        "directory": "/d",
        "last_seq": 0,
    }
    plain = [
        Hello(role="shim", protocol=1, nonce=N64),
        Challenge(protocol=1, nonce=N64, proof=N64, sidecar_version="0.1"),
        Identify(proof=N64, pid=3, client_version="0.1"),
        Identify(proof=N64, pid=3, **shim),
        Welcome(sidecar_boot="b", sidecar_version="0.1", acked_seq=0, window=512, context={"a": [1]}),
        Ack(seq=1),
        Call(id="c1", method="session.get", args={"path": {"id": "ses"}}),
        Result(id="c1", value={"x": [1, None, "é"]}),
        Result(id=7, error=ErrorBody(code="opencode", message="no", status=404)),
        Request(id="r1", method="ping", args={}),
        Tool(id=4, name="agent_spawn", args={"a": 1}, context={}),
        Context(context={"lossy": False}),
        Bye(reason="idle"),
    ]
    hooks = [hook for name in names() for _, hook in recording(name)]
    items = [Hooks(n + 1, hooks[n : n + 2]) for n in range(0, len(hooks), 7)]
    lossy = [Lossy(hooks[n : n + 1]) for n in range(0, len(hooks), 97)]
    texts = [encode(frame).encode() for frame in (*plain, *lossy, *items)]
    return tuple(text for text in texts if len(text) <= MAX_MESSAGE)


@cache
def hooks_corpus() -> tuple[bytes, ...]:
    """The corpus's messages that a linked shim sends."""
    return tuple(text for text in corpus() if text.startswith(b'{"type":"hooks"'))


@cache
def _corpus_tokens() -> dict[bytes, list[tuple[int, int]]]:
    return {message: _find_tokens(message) for message in corpus()}


def _find_tokens(message: bytes) -> list[tuple[int, int]]:
    return [match.span() for match in _TOKEN.finditer(message)]


def _tokens(message: bytes) -> list[tuple[int, int]]:
    known = _corpus_tokens().get(message)
    return _find_tokens(message) if known is None else known


def _replace_token(random: Random, message: bytes) -> bytes:
    spans = _tokens(message)
    if not spans:
        return value(random)
    start, end = random.choice(spans)
    return message[:start] + value(random) + message[end:]


def _swap_token(random: Random, message: bytes) -> bytes:
    spans = _tokens(message)
    other = random.choice(corpus())
    if not spans:
        return other
    start, end = random.choice(spans)
    begin, stop = random.choice(_tokens(other))
    return message[:start] + other[begin:stop] + message[end:]


def _repeat_key(random: Random, message: bytes) -> bytes:
    at = message.find(b"{", random.randrange(max(1, len(message)))) + 1
    name = random.choice(
        (b'"type"', b'"items"', b'"first_seq"', b'"hook"', b'"t"', b'"input"', b'"id"', b'"sessionID"')
    )
    return message[:at] + name + b":" + value(random) + b"," + message[at:]


def _flip(random: Random, message: bytes) -> bytes:
    out = bytearray(message)
    for _ in range(random.choice((1, 1, 2, 8))):
        out[random.randrange(len(out))] ^= 1 << random.randrange(8)
    return bytes(out)


def _insert(random: Random, message: bytes) -> bytes:
    at = random.randrange(len(message) + 1)
    return message[:at] + random.randbytes(random.choice((1, 2, 5, 40))) + message[at:]


def _cut(random: Random, message: bytes) -> bytes:
    return message[: random.randrange(len(message))]


def _remove(random: Random, message: bytes) -> bytes:
    at = random.randrange(len(message))
    return message[:at] + message[at + random.choice((1, 3, 20)) :]


def _repeat(random: Random, message: bytes) -> bytes:
    at = random.randrange(len(message))
    piece = message[at : at + random.choice((1, 10, 100))]
    return message[:at] + piece * random.choice((2, 3, 30)) + message[at:]


def _splice(random: Random, message: bytes) -> bytes:
    other = random.choice(corpus())
    return message[: random.randrange(len(message))] + other[random.randrange(len(other)) :]


_BYTES = (_flip, _insert, _cut, _remove, _repeat, _splice)
_JSON = (_replace_token, _replace_token, _replace_token, _swap_token, _repeat_key)

Mutation = Callable[[Random, bytes], bytes]


def mutate(random: Random, message: bytes, *, json_share: float = 0.7) -> bytes:
    """``message`` with one to three faults; ``json_share`` of them leave most of it readable JSON."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        mutations: tuple[Mutation, ...] = _JSON if random.random() < json_share else _BYTES
        message = random.choice(mutations)(random, message or b"{}")
    return message


def hostile_message(random: Random) -> bytes:
    """One message: from the corpus and changed, or noise; sometimes unchanged."""
    kind = random.random()
    if kind < 0.02:
        return random.randbytes(random.randrange(200))
    message = random.choice(corpus())
    return message if kind < 0.05 else mutate(random, message)
