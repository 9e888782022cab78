"""Canonical bytes, digests and the hash chain. Pure.

``canonical(value)`` is UTF-8 JSON with sorted keys and no spaces: the same
content gives the same bytes on every machine; ``tests/streams/vectors.json``
pins them. A record's hash is::

    hash = sha256(previous ‖ canonical(event with its payload as {"$sha256": hex}))

where ``previous`` is the stream's previous hash (32 raw bytes, zeros at
first) and ``hex`` the digest of the canonical payload. So a digest can
later replace the payload without breaking the chain.

What is stored is hashed as it is stored, and never written again first: JSON leaves open how a float's exponent is
written, and the libraries that write it have changed their form (``1e20`` and ``1e+20``).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, NamedTuple

import msgspec
import orjson

from streams.event import StreamEvent

GENESIS = bytes(32)
"""The hash before a stream's first record."""

MAX_DEPTH = 200
"""Maximum nesting depth of objects and lists in an event, including the event itself. Deeper values are replaced by a
marker and counted.

orjson writes up to 254 levels and reads up to 1024, so such an event still fits into a log line, an answer, or a
message.
"""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_DIGEST_PAYLOAD = re.compile(rb'\{"\$sha256":"([0-9a-f]{64})"\}')
_parts_of = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1


@dataclass(slots=True)
class Repairs:
    surrogates: int = 0
    big_integers: int = 0
    not_finite: int = 0
    too_deep: int = 0
    not_json: int = 0

    def total(self) -> int:
        return self.surrogates + self.big_integers + self.not_finite + self.too_deep + self.not_json


NO_REPAIRS: Final = Repairs()
"""No repairs, as for nearly every event. The object is shared and never changed."""


def canonical(value: Any) -> bytes:
    """Canonical bytes of a JSON value, repaired by ``normalise`` if needed."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except (TypeError, RecursionError):
        return orjson.dumps(normalise(value, Repairs()), option=orjson.OPT_SORT_KEYS)


def normalise(value: Any, repairs: Repairs, depth: int = 0) -> Any:
    """Copy ``value`` so that every JSON reader accepts it; never refuses, and counts changes in ``repairs``.

    Lone surrogates become U+FFFD; integers beyond 64 bits become floats, or null if too large for a float; NaN and
    infinities become null; non-string keys become strings.
    """
    if isinstance(value, str):
        return _text(value, repairs)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if _INT_MIN <= value <= _INT_MAX else _big_integer(value, repairs)
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        repairs.not_finite += 1
        return None
    if isinstance(value, dict | list | tuple):
        if depth >= MAX_DEPTH and not _is_marker(value):
            repairs.too_deep += 1
            return {_TOO_DEEP: type(value).__name__}
        if isinstance(value, dict):
            # Sort the keys: if two keys become equal when they are repaired, the same one must always win.
            entries = sorted(value.items(), key=lambda entry: str(entry[0]))
            return {_text(str(k), repairs): normalise(v, repairs, depth + 1) for k, v in entries}
        return [normalise(item, repairs, depth + 1) for item in value]
    repairs.not_json += 1
    return _text(str(value), repairs)


_TOO_DEEP = "$too_deep"


def _is_marker(value: Any) -> bool:
    """True if ``value`` is the marker of a value nested too deeply. Stored events then encode to the same bytes."""
    return isinstance(value, dict) and len(value) == 1 and isinstance(value.get(_TOO_DEEP), str)


def _text(value: str, repairs: Repairs) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        repairs.surrogates += 1
        # Join the halves of surrogate pairs, each of which is one character that a careless encoder has split.
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return value


def _big_integer(value: int, repairs: Repairs) -> float | None:
    repairs.big_integers += 1
    try:
        return float(value)
    except OverflowError:
        return None


class Encoded(NamedTuple):
    """An event ready to chain and write: everything that does not depend on the event's place in the log."""

    event: StreamEvent
    canonical: bytes
    payload_sha256: str
    digest_form: bytes
    """Canonical bytes with the payload replaced by its digest, which the chain hashes."""
    repairs: Repairs = NO_REPAIRS

    def body(self) -> tuple[str, str, str, str]:
        """What must be equal for two events with the same key to count as one event."""
        return (self.event.type, self.event.stream_id, self.event.actor, self.payload_sha256)


def encode(event: StreamEvent) -> Encoded:
    """Return the canonical bytes and digests of ``event``. Every payload is accepted (see ``normalise``)."""
    try:
        encoded = _encode(event, event.fields(), None)
    except (TypeError, RecursionError):  # orjson refuses lone surrogates, big integers, deep nesting and other non-JSON
        encoded = None
    if encoded is not None:
        return encoded
    repairs = Repairs()
    fields = normalise(event.fields(), repairs)
    # Build the event again from its stored form, because readers will get that form.
    event = StreamEvent.trusted(orjson.loads(orjson.dumps(fields)))
    repaired = _encode(event, fields, repairs)
    assert repaired is not None
    return repaired


def _encode(event: StreamEvent, fields: dict[str, Any], repairs: Repairs | None) -> Encoded | None:
    """The encoded event; ``None`` if something in it must be repaired first."""
    written = event.canonical_payload if repairs is None else b""
    payload = written or orjson.dumps(fields["payload"], option=orjson.OPT_SORT_KEYS)
    digest = sha256(payload).hexdigest()
    mark = b'{"$sha256":"%b"}' % digest.encode()
    fields["payload"] = orjson.Fragment(mark)
    digest_form = orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)
    if repairs is None:
        # orjson writes NaN as null and accepts more nesting than our limit, so check the values if either is possible.
        levels = digest_form.count(b"{") + digest_form.count(b"[") + payload.count(b"{") + payload.count(b"[")
        if (b"null" in payload or levels > MAX_DEPTH) and not _is_plain(event.fields(), 0):
            return None
    if event.is_known():
        # Put the payload where its digest is, because writing everything again takes twice as long. After the payload
        # come only strings and numbers, in which the digest's quotes cannot be.
        before, _, after = digest_form.rpartition(mark)
        whole = b"".join((before, payload, after))
    else:
        fields["payload"] = orjson.Fragment(payload)
        whole = orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)
    return Encoded(event, whole, digest, digest_form, repairs or NO_REPAIRS)


def _is_plain(value: Any, depth: int) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict | list | tuple):
        if depth >= MAX_DEPTH and not _is_marker(value):
            return False
        return all(_is_plain(item, depth + 1) for item in (value.values() if isinstance(value, dict) else value))
    return True


def chain(previous: bytes, digest_form: bytes) -> bytes:
    """The next hash of a stream (32 raw bytes)."""
    return sha256(previous + digest_form).digest()


def payload_digest(payload: Any) -> str:
    """The digest of an event's payload, which may be forgotten."""
    return str(payload["$sha256"]) if is_digest(payload) else sha256(canonical(payload)).hexdigest()


def digest_form_of(stored: bytes) -> tuple[str, bytes]:
    """(payload digest, digest form) of an event's stored bytes; its payload may have been forgotten."""
    parts = _parts_of(stored)
    payload = bytes(parts["payload"])
    forgotten = _DIGEST_PAYLOAD.fullmatch(payload)
    digest = forgotten[1].decode() if forgotten else sha256(payload).hexdigest()
    parts["payload"] = msgspec.Raw(b'{"$sha256":"%b"}' % digest.encode())
    return digest, msgspec.json.encode(parts)


def is_canonical(stored: bytes, value: Any) -> bool:
    """True if ``stored``, which reads as ``value``, is in canonical form, however its exponents are written."""
    written = canonical(value)
    # Within strings, both are changed alike, and the hash chain covers the bytes themselves.
    return written == stored or written.replace(b"e+", b"e") == stored.replace(b"e+", b"e")


def is_digest(payload: Any) -> bool:
    """True if a payload has the form that is left of a forgotten payload; ``append`` refuses payloads of this form."""
    if not isinstance(payload, dict) or len(payload) != 1:
        return False
    digest = payload.get("$sha256")
    return isinstance(digest, str) and _DIGEST.fullmatch(digest) is not None
