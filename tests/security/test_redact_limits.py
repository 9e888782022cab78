"""Redaction of long, deep, hostile and already redacted values."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.opencode.redact import KEPT_OF_LONG, MAX_STRING, Redactor
from bridge.opencode.redact.rules import built_in
from streams.hashing import MAX_DEPTH, encode
from streams.identity import seeded_identity
from tests.security.drawn import drawn
from tests.security.made_up import KEYS, clean


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> int:
    """A lower limit for strings, because the real one only takes longer."""
    monkeypatch.setattr("bridge.opencode.redact.MAX_STRING", 2 * KEPT_OF_LONG)
    return 2 * KEPT_OF_LONG


class TestSize:
    def test_a_string_over_the_limit_becomes_digest_size_and_beginning(self) -> None:
        text = "é" + "x" * MAX_STRING
        redactor = Redactor()
        data = text.encode()
        assert redactor.clean({"output": text, "short": "y"}) == {
            "output": {"$sha256": sha256(data).hexdigest(), "bytes": len(data), "beginning": text[:KEPT_OF_LONG]},
            "short": "y",
        }
        assert redactor.shortened == 1

    def test_a_string_at_the_limit_is_kept(self) -> None:
        text = "x" * MAX_STRING
        assert clean(text) is text

    def test_a_secret_in_the_beginning_of_a_long_string_is_not_kept(self, limit: int) -> None:
        name, secret = KEYS["github"]
        kept = clean(secret + " " + "x" * limit)
        assert kept["beginning"].startswith(f"[redacted:{name}] xxx") and len(kept["beginning"]) == KEPT_OF_LONG

    def test_a_lone_surrogate_in_a_long_string_is_no_obstacle(self, limit: int) -> None:
        assert clean("\ud800" + "x" * limit)["bytes"] == limit + 1

    @pytest.mark.parametrize("wrap", [lambda v: [v], lambda v: {"d": v}])
    @pytest.mark.parametrize("depth", [MAX_DEPTH - 1, MAX_DEPTH, MAX_DEPTH + 1, 1000])
    def test_what_nests_too_deep_is_cut_and_never_stops_the_sidecar(self, wrap: Any, depth: int) -> None:
        """JSON parsers accept 1024 levels, more than Python can recurse."""
        value: Any = KEYS["github"][1]
        for _ in range(depth):
            value = wrap(value)
        redactor = Redactor()
        cleaned = redactor.clean(value)
        assert redactor.shortened == (depth > MAX_DEPTH)
        for _ in range(min(depth, MAX_DEPTH)):
            cleaned = cleaned[0] if isinstance(cleaned, list) else cleaned["d"]
        kept = "[redacted:github-token]"
        assert cleaned == (kept if depth <= MAX_DEPTH else {"$too_deep": type(value).__name__})


_FRAGMENTS = [drawn(form, seed) for rule in built_in() for form in rule.examples for seed in (1, 2)]
_AROUND = [
    *("\n", "\t", " ", '"', "'", "\\", "\\n", '\\"', ":", "=", ": ", "{", "}", ",", "[redacted:jwt]", "[redacted:"),
    *("é", "\U0001f600", "\x1b[0m", "%20", "password", "token", "key", "secret", "api_key", "Bearer ", "a", "7", "-"),
]
TEXTS = st.lists(
    st.one_of(
        st.sampled_from(_AROUND),
        st.sampled_from(_FRAGMENTS),
        st.builds(lambda text, end: text[:end], st.sampled_from(_FRAGMENTS), st.integers(0, 60)),
    ),
    max_size=8,
).map("".join)
VALUES = st.one_of(TEXTS, st.lists(TEXTS, max_size=3), st.dictionaries(TEXTS, TEXTS, max_size=3), TEXTS.map(json.dumps))


@settings(max_examples=120, deadline=None, derandomize=True)
@given(VALUES)
def test_the_quick_look_at_the_whole_misses_nothing(value: Any) -> None:
    one, other = Redactor(), Redactor()
    assert one.clean({"v": value}) == {"v": other._clean(value, 0)}
    assert one.redactions == other.redactions


_ODD = st.one_of(st.integers(), st.floats(), st.none(), st.text(), st.lists(st.floats(), max_size=2))


@given(st.dictionaries(st.text(max_size=3), st.one_of(_ODD, st.dictionaries(st.text(max_size=3), _ODD), VALUES)))
def test_what_was_written_to_look_for_secrets_is_what_the_log_stores(value: dict[str, Any]) -> None:
    cleaned, written = Redactor().cleaned(value)
    assert not written or cleaned is value
    fields = {"type": "a.b", "stream_id": "s", "actor": "a", "source": {"agent": "a", "adapter": "b"}}
    one, other = (seeded_identity(1).stamp({**fields, "payload": cleaned}, given) for given in (written, b""))
    assert encode(one) == encode(other)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(VALUES)
def test_a_second_redaction_changes_nothing(value: Any) -> None:
    first = clean({"v": value})
    assert clean(first) == first
