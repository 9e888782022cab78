"""Header blocks of any content are parsed as the client library parses them."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from nats.aio.client import Client

from bridge.nats.jetstream.wire import HeaderBlock

LINES = st.one_of(
    st.binary(max_size=12),
    st.tuples(
        st.sampled_from([b"A", b"Nats-X", b"DS-Position", b"", b" A", b"A ", b"B B", b"\xc3\xa4", b"Status"]),
        st.sampled_from([b": ", b":", b":\t", b" : ", b""]),
        st.sampled_from([b"1", b"", b"x y", b" v ", b"\xff", b"\xc2\xa0", b"a: b", b"DS-Position", b"\x1c1"]),
    ).map(b"".join),
).filter(lambda line: b"\r\n" not in line)


def as_the_library_says(raw: bytes) -> dict[str, str]:
    found = asyncio.run(Client()._process_headers(raw)) or {}
    return {name: value for name, value in found.items() if name}


@given(st.lists(LINES, max_size=5))
@example([b"DS-Position: 1", b"DS-Position:2"])
def test_any_block_says_what_the_library_makes_of_it(lines: list[bytes]) -> None:
    raw = b"NATS/1.0\r\n" + b"".join(line + b"\r\n" for line in lines) + b"\r\n"
    wanted, block = as_the_library_says(raw), HeaderBlock(raw)
    # Asked for one at a time before all are known, and then all.
    names = {*wanted, "A", "DS-Position", "absent"}
    assert {name: HeaderBlock(raw).get(name) for name in names} == {name: wanted.get(name) for name in names}
    assert dict(block) == wanted and len(block) == len(wanted) and not block.has_status


@pytest.mark.parametrize(
    ("raw", "status", "words"),
    [
        (b"NATS/1.0 503\r\n\r\n", "503", None),
        (b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 1\r\n\r\n", "408", "Request Timeout"),
        (b"NATS/1.0 404 No Messages\r\n\r\n", "404", "No Messages"),
    ],
)
def test_a_notice_of_the_server(raw: bytes, status: str, words: str | None) -> None:
    block = HeaderBlock(raw)
    assert block.has_status and block["Status"] == status and block.get("Description") == words
    assert dict(block).items() >= as_the_library_says(raw).items()
