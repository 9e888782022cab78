"""Headers: what is filled in, what is refused, and that no injection is possible."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.nats import headers as h
from bridge.nats.headers import (
    Filled,
    ProtocolViolation,
    depth_header,
    fill_headers,
    header_text,
    message_id,
    read_depth,
    reserved_keys,
)
from streams.bus.headers import MAX_HEADERS, MAX_VALUE, HeaderError, check_headers
from streams.lineage import traceparent
from streams.trace import made_trace
from tests.streams.sizes import size

many = settings(max_examples=size("EXAMPLES", 200), deadline=None, derandomize=True, database=None)
texts = st.text(st.characters(codec=None, categories=None), max_size=60) | st.sampled_from(
    ["", " ", " a ", "a\r\nb: c", "%", "%_", "x" * 2000, "é" * 900, "\ud800", "\x00", "\u2028", "%~" + "0" * 32]
)
GOOD = traceparent("ses_root", "ses_child")


def filled(given: dict[str, str] | None = None, **more: Any) -> Filled:
    fields: dict[str, Any] = {
        "origin": "ses_a",
        "timestamp_ms": 1_700_000_000_000,
        "message_type": "agent.step",
        "sender": "build",
        **more,
    }
    return fill_headers(given or {}, **fields)


def wire(headers: dict[str, str]) -> bytes:
    return b"NATS/1.0\r\n" + b"".join(f"{k}: {v}\r\n".encode() for k, v in headers.items()) + b"\r\n"


def read(raw: bytes) -> dict[str, str]:
    """Read headers as a client does: line by line, white space stripped."""
    lines = raw.decode().split("\r\n")
    assert lines[0] == "NATS/1.0" and lines[-2:] == ["", ""]
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:-2])}


def test_what_is_missing_is_filled_in() -> None:
    done = filled(message_id="01A")
    assert done.headers == {
        "traceparent": str(made_trace("ses_a")),
        "CG-Trace-Generated": "true",
        "CG-Timestamp": "1700000000000",
        "CG-Version": "v1",
        "CG-Msg-Type": "agent.step",
        "CG-Sender": "build",
        "Nats-Msg-Id": "01A",
    }
    assert done.notes == ("trace_made",)


def test_what_is_there_stays() -> None:
    given = {
        "traceparent": GOOD,
        "tracestate": "vendor=1,other=2",
        "CG-Timestamp": "1",
        "CG-Version": "v7",
        "CG-Msg-Type": "mine",
        "CG-Sender": "me",
        "CG-Recursion-Depth": "3",
        "CG-User-ID": "u",
        "Nats-Msg-Id": "mine",
        "X-Other": "kept",
    }
    done = filled(given, message_id="01A")
    assert done.headers == given
    assert done.notes == () and str(done.trace) == GOOD


BAD_TRACES = (
    *(
        "",
        "x",
        GOOD.upper(),
        GOOD + "-more",
        "ff" + GOOD[2:],
        GOOD + "\r\nCG-Recursion-Depth: 0",
        GOOD + "\n",
        GOOD[:-1],
    ),
    *(f"00-{'0' * 32}-{'1' * 16}-01", f"00-{'1' * 32}-{'0' * 16}-01", f" {GOOD}", "é"),
)


def test_a_bad_trace_starts_anew_and_is_marked() -> None:
    for bad in BAD_TRACES:
        done = filled({"traceparent": bad, "tracestate": "vendor=1"})
        assert done.notes == ("trace_invalid", "tracestate_dropped"), bad
        assert done.headers["traceparent"] == str(made_trace("ses_a"))
        assert done.headers[h.TRACE_MADE] == "true" and "tracestate" not in done.headers
        assert wire(done.headers).count(b"Recursion") == 0


@pytest.mark.parametrize("state", ["", "a" * 513, "a=1\r\nCG-Sender: evil", " a=1", "é=1"])
def test_a_tracestate_that_cannot_be_passed_on_is_dropped_and_noted(state: str) -> None:
    done = filled({"traceparent": GOOD, "tracestate": state})
    assert "tracestate" not in done.headers and done.notes == ("tracestate_dropped",)
    assert done.headers["traceparent"] == GOOD


def test_a_trace_that_was_made_before_stays_marked() -> None:
    first = filled()
    passed_on = filled(first.headers)
    assert passed_on.headers == first.headers and passed_on.notes == ()
    assert filled(origin="other").headers != first.headers == filled().headers


# Depth


def test_a_depth_is_read() -> None:
    for text, depth in (("0", 0), ("1", 1), ("19", 19), ("999999", 999_999)):
        assert read_depth({"CG-Recursion-Depth": text}) == depth
        assert filled({"CG-Recursion-Depth": text}).headers["CG-Recursion-Depth"] == text
        assert depth_header(depth) == {"CG-Recursion-Depth": text}


def test_a_bad_depth_is_a_violation() -> None:
    texts = (
        "",
        "-1",
        "+1",
        " 1",
        "1 ",
        "1.0",
        "1e1",
        "0x1",
        "1_0",
        "01",
        "00",
        "١",
        "²",
        "nan",
        "None",
        "1000000",
        "1\n",
    )
    for text in texts:
        with pytest.raises(ProtocolViolation, match="CG-Recursion-Depth"):
            read_depth({"CG-Recursion-Depth": text})
        with pytest.raises((ProtocolViolation, HeaderError)):
            filled({"CG-Recursion-Depth": text})


def test_a_missing_depth_is_a_violation_and_never_made_up() -> None:
    with pytest.raises(ProtocolViolation, match="CG-Recursion-Depth"):
        read_depth({})
    assert "CG-Recursion-Depth" not in filled().headers
    with pytest.raises(ProtocolViolation):
        depth_header(-1)


# Reserved keys


def test_reserved_keys_in_a_payload_warn_and_pass() -> None:
    done = filled(payload={"CG-Sender": 1, "cg-x": 2, "cg_x": 3, "plain": {"CG-Inner": 4}})
    assert done.notes == ("trace_made", "reserved_keys")
    assert reserved_keys({"CG-Sender": 1, "cg-x": 2, "cg_x": 3}) == ("CG-Sender", "cg-x")
    assert reserved_keys({}) == ()


# Injection


REFUSED: dict[str, tuple[dict[Any, Any], ...]] = {
    "value": (
        *({"a": "b\r\nc: d"}, {"a": "b\n"}, {"a": "\x00"}, {"a": ""}, {"a": " b"}, {"a": "b "}, {"a": "é"}, {"a": 5}),
    ),
    "longer": ({"a": "x" * (MAX_VALUE + 1)},),
    "name": (
        *({"a\r\nb": "c"}, {"a:b": "c"}, {"": "c"}, {"1a": "c"}, {"a b": "c"}, {"é": "c"}, {"a" * 65: "c"}, {5: "a"}),
    ),
    "another header has the same name": ({"CG-Sender": "a", "cg-sender": "b"},),
    "the limit is": ({f"h{n}": "x" for n in range(MAX_HEADERS + 1)},),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_a_header_that_could_be_mistaken_is_refused(fault: str) -> None:
    for headers in REFUSED[fault]:
        with pytest.raises(HeaderError, match=fault) as raised:
            check_headers(headers)
        assert "\n" not in str(raised.value) and len(str(raised.value)) < 300


@many
@given(texts, texts, texts, texts)
def test_no_name_can_smuggle_a_header_in(sender: str, type_: str, identity: str, state: str) -> None:
    given_ = {"traceparent": GOOD, "tracestate": state}
    done = filled(given_, sender=sender, message_type=type_, message_id=identity)
    back = read(wire(done.headers))
    assert back == done.headers == check_headers(done.headers)
    assert set(back) - {"tracestate"} == {
        "traceparent",
        "CG-Timestamp",
        "CG-Version",
        "CG-Msg-Type",
        "CG-Sender",
        "Nats-Msg-Id",
    }


@many
@given(texts)
def test_text_in_a_header_comes_back(text: str) -> None:
    value = header_text(text)
    assert check_headers({"a": value}) == {"a": value}
    if "%~" not in value and value != "%_":
        assert unquote(value, errors="surrogatepass") == text


def test_header_text_is_pinned() -> None:
    for text, value in {
        **{"build": "build", "chief-of-staff/oracle": "chief-of-staff/oracle", "two words": "two words", "": "%_"},
        **{" a ": "%20a%20", " ": "%20", "100%": "100%25", "ü": "%C3%BC", "a\r\nb": "a%0D%0Ab"},
    }.items():
        assert header_text(text) == value


def test_message_ids_are_pinned() -> None:
    assert message_id("01A") == "01A"
    assert message_id("01A", part="l0") == "01A:l0"
    assert message_id("01A", part="l0:state") == "01A:l0:state"
    assert message_id("01A", rebuild=3) == "01A:3"
    assert message_id("01A", part="l0", rebuild=3) == "01A:l0:3"
