"""Canonical bytes, digests and chain hashes are pinned: a log written by any version must still verify."""

from __future__ import annotations

import json
import math
from hashlib import sha256
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.event import StreamEvent
from streams.hashing import (
    GENESIS,
    MAX_DEPTH,
    Repairs,
    canonical,
    chain,
    digest_form_of,
    encode,
    is_canonical,
    normalise,
)
from tests.streams.builders import event
from tests.streams.sizes import size
from tests.streams.vectors import FILE, computed, events, nested

PINNED: list[dict[str, str]] = json.loads(FILE.read_text())
BY_NAME = {row["name"]: row for row in PINNED}

OTHER_NUMBERS = {"exponents", "beyond 64 bits"}
"""JSON leaves open how exponents are written: the standard library writes ``1e-07``, orjson ``1e-7``."""


def independent(value: Any) -> bytes:
    """Canonical JSON from the standard library."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def test_bytes_and_hashes_are_as_pinned() -> None:
    assert computed() == PINNED
    assert len(PINNED) >= 20


@pytest.mark.parametrize("row", PINNED, ids=lambda row: row["name"])
def test_an_independent_implementation_agrees(row: dict[str, str]) -> None:
    fields = json.loads(row["canonical"])
    if row["name"] not in OTHER_NUMBERS:
        assert independent(fields).decode() == row["canonical"]
        assert sha256(independent(fields["payload"])).hexdigest() == row["payload_sha256"]
    text = row["canonical"]
    begin = text.index('"payload":') + len('"payload":')
    payload, _ = json.JSONDecoder().raw_decode(text, begin)
    end = text.index(',"schema_version":', begin + (0 if payload == {} else 1))
    assert sha256(text[begin:end].encode()).hexdigest() == row["payload_sha256"]


def test_an_independent_implementation_chains_the_same() -> None:
    previous = bytes(32)
    for row in PINNED:
        fields = json.loads(row["canonical"])
        form = independent({**fields, "payload": {"$sha256": row["payload_sha256"]}})
        previous = sha256(previous + form).digest()
        assert previous.hex() == row["hash"], row["name"]


def test_reading_back_gives_the_event_in_hand_and_its_bytes() -> None:
    for name, made in events().items():
        encoded = encode(made)
        stored = StreamEvent.trusted(orjson.loads(encoded.canonical))
        assert stored == encoded.event, name
        assert canonical(stored.fields()) == encoded.canonical == encode(stored).canonical, name
        if name != "like a digest":  # no log holds it, because it would pass for a forgotten payload
            assert digest_form_of(encoded.canonical) == (encoded.payload_sha256, encoded.digest_form), name


@pytest.mark.parametrize(
    ("name", "payload", "repairs"),
    [
        ("beyond 64 bits", {"2**64": 2.0**64, "2**70": 2.0**70, "minus": -(2.0**63), "10**400": None}, 4),
        ("not finite", {"nan": None, "inf": None, "minus": None, "1e400": None}, 4),
        ("lone surrogates", {"high": "a�b", "low": "�", "reversed": "��", "last": "a�"}, 4),
        ("surrogate pair", {"split": "😀", "whole": "😀"}, 1),
        ("surrogate keys", {"a�": 2, "😀": 3}, 2),
        ("unsigned integers", {"2**63": 2**63, "2**64-1": 2**64 - 1}, 0),
        ("nested", {"deep": nested(150)}, 0),
    ],
)
def test_what_json_cannot_hold_is_repaired_and_counted(name: str, payload: dict[str, Any], repairs: int) -> None:
    encoded = encode(events()[name])
    assert json.loads(encoded.canonical)["payload"] == payload == encoded.event.payload
    assert encoded.repairs.total() == repairs


@pytest.mark.parametrize("wrap", [lambda v: [v], lambda v: {"d": v}, lambda v: (v,)])
@pytest.mark.parametrize("depth", [MAX_DEPTH - 3, MAX_DEPTH - 2, MAX_DEPTH - 1, MAX_DEPTH, 253, 254, 255, 900])
def test_an_event_is_never_deeper_than_its_limit(wrap: Any, depth: int) -> None:
    """The event and its payload add two levels; orjson alone would write 254 and then fail to wrap them."""
    value: Any = "inmost"
    for _ in range(depth):
        value = wrap(value)
    encoded = encode(event("deep", payload={"deep": value}))
    is_kept = depth + 2 <= MAX_DEPTH
    assert (b"inmost" in encoded.canonical) == is_kept
    assert encoded.repairs.too_deep == (0 if is_kept else 1)
    assert canonical(encoded.event.fields()) == encoded.canonical
    line = canonical([{"event": encoded.event.fields()}])
    assert line == b'[{"event":%b}]' % encoded.canonical, "what holds an event is not too deep either"


@pytest.mark.parametrize("row", [r for r in PINNED if r["name"] != "like a digest"], ids=lambda row: row["name"])
def test_what_is_stored_is_hashed_as_it_is(row: dict[str, str]) -> None:
    """An older library wrote exponents as 1e20."""
    older = row["canonical"].replace("e+", "e").encode()
    fields = orjson.loads(older)
    digest, form = digest_form_of(older)
    begin = older.index(b'"payload":') + len(b'"payload":')
    payload = older[begin : older.index(b',"schema_version":', begin)]
    assert older == older[:begin] + payload + older[begin + len(payload) :]
    assert digest == sha256(payload).hexdigest()
    assert form == older[:begin] + b'{"$sha256":"%b"}' % digest.encode() + older[begin + len(payload) :]
    assert digest_form_of(form) == (digest, form), "a forgotten payload is its digest"
    assert is_canonical(older, fields)
    assert not is_canonical(older.replace(b",", b", "), fields)
    assert not is_canonical(orjson.dumps(dict(reversed(fields.items()))), fields)


# Properties

numbers = st.integers() | st.floats() | st.sampled_from([2**63, 2**64, -(2**63) - 1, 1e400, -0.0, 2**70, 10**400])
texts = st.text(st.characters(codec=None, categories=None), max_size=12)
"""Lone surrogates included."""

json_like = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)
python_like = st.recursive(
    st.none() | numbers | texts | st.binary(max_size=4) | st.datetimes() | st.uuids() | st.decimals() | st.just({1, 2}),
    lambda inner: st.tuples(inner, inner) | st.dictionaries(st.integers() | st.none() | texts, inner, max_size=3),
    max_leaves=8,
)
many = settings(max_examples=size("EXAMPLES", 100), deadline=None, derandomize=True, database=None)


@many
@given(json_like)
def test_canonical_bytes_read_back_are_canonical(value: Any) -> None:
    data = canonical(value)
    assert canonical(orjson.loads(data)) == data == canonical(json.loads(data))
    assert canonical(normalise(value, Repairs())) == data


@many
@given(st.dictionaries(texts, json_like, max_size=4), st.dictionaries(texts, json_like, max_size=2))
def test_any_payload_is_stored_as_it_reads_back(payload: dict[str, Any], metadata: dict[str, Any]) -> None:
    encoded = encode(event("any", payload=payload, metadata=metadata))
    stored = StreamEvent.trusted(orjson.loads(encoded.canonical))
    assert encode(stored).canonical == encoded.canonical
    assert _same(stored.payload, encoded.event.payload)
    digest, form = digest_form_of(encoded.canonical)
    assert (digest, form) == (encoded.payload_sha256, encoded.digest_form)
    assert chain(GENESIS, form) == sha256(GENESIS + form).digest()


@many
@given(st.dictionaries(texts, json_like, max_size=4), st.dictionaries(texts, json_like, max_size=2))
def test_one_writing_gives_the_bytes_of_writing_the_whole(payload: dict[str, Any], metadata: dict[str, Any]) -> None:
    """The payload is written once, and then copied into the event."""
    encoded = encode(event("any", payload=payload, metadata=metadata, more={"payload": payload}))
    assert encoded.canonical == canonical(encoded.event.fields())
    assert encoded.payload_sha256 == sha256(canonical(encoded.event.payload)).hexdigest()
    whole = {**encoded.event.fields(), "payload": {"$sha256": encoded.payload_sha256}}
    assert encoded.digest_form == canonical(whole)


@many
@given(python_like)
def test_nothing_is_refused(value: Any) -> None:
    """A runtime's agents build payloads in Python, which allows more than JSON."""
    encoded = encode(event("any", payload={"value": value}))
    assert canonical(orjson.loads(encoded.canonical)) == encoded.canonical


def _same(left: Any, right: Any) -> bool:
    """True if equal and of equal types: 1 is not 1.0, and -0.0 is not 0.0."""
    if isinstance(left, float) and isinstance(right, float):
        return left == right and math.copysign(1, left) == math.copysign(1, right)
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_same, left, right))
    return type(left) is type(right) and left == right
