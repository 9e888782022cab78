"""The content of the pinned vectors, and ``python -m tests.streams.vectors`` to write ``vectors.json`` again.

The file is the promise that bytes and hashes never change. Rewrite it only to
add cases, never to make a failing test pass.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from streams.event import StreamEvent
from streams.hashing import GENESIS, chain, encode

FILE = Path(__file__).with_name("vectors.json")


def nested(depth: int) -> Any:
    """``depth`` alternating lists and objects, each inside the other."""
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"d": value}
    return value


PAYLOADS: dict[str, dict[str, Any]] = {
    "empty": {},
    "nulls": {"a": None, "b": [None, {"c": None}]},
    "key order": {"b": 1, "a": 2, "B": 3, "A": 4, "10": 5, "9": 6, "": 7},
    "unicode key order": {"é": 1, "z": 2, "ß": 3, "😀": 4, "\uffff": 5, "中": 6, "e\u0301": 7},
    "unicode text": {"text": "naïve café, 中文, עברית, 😀👩\u200d👩\u200d👧, e\u0301 is not é"},
    "escaped": {"text": '"quoted" \\ / \b\f\n\r\t \x00\x01\x1f\x7f\u2028\u2029'},
    "escaped keys": {'a"b': 1, "a\nb": 2, "\x00": 3, "a\\b": 4},
    "integers": {"zero": 0, "minus": -1, "53": 2**53, "max": 2**63 - 1, "min": -(2**63)},
    "unsigned integers": {"2**63": 2**63, "2**64-1": 2**64 - 1},
    "beyond 64 bits": {"2**64": 2**64, "2**70": 2**70, "minus": -(2**63) - 1, "10**400": 10**400},
    "floats": {"half": 0.5, "tenth": 0.1, "sum": 0.1 + 0.2, "one": 1.0, "third": 1 / 3},
    "negative zero": {"float": -0.0, "integer": -0},
    "exponents": {"small": 1e-7, "tiny": 5e-324, "large": 1e16, "huge": 1.7976931348623157e308},
    "not finite": {"nan": float("nan"), "inf": float("inf"), "minus": float("-inf"), "1e400": float("1e400")},
    "lone surrogates": {"high": "a\ud800b", "low": "\udc00", "reversed": "\udc00\ud800", "last": "a\udbff"},
    "surrogate pair": {"split": "\ud83d\ude00", "whole": "😀"},
    "surrogate keys": {"a\ud800": 1, "a\ufffd": 2, "\ud83d\ude00": 3},  # noqa: F601 - ruff takes both for one
    "nested": {"deep": nested(150)},
    "nested too deep": {"deep": nested(230)},
    "mixed list": {"list": [True, False, None, 0, 0.0, "", [], {}, [[]], {"": {}}]},
    "like a digest": {"$sha256": "0" * 64},
    "tokens": {"tokens": {"input": 12, "output": 7, "cache": {"read": 0, "write": 0}}, "cost": 0.00123},
}

MORE: dict[str, dict[str, Any]] = {
    "unknown fields": {"invented": {"by": ["a", "newer", "version"]}, "schema_version": 9, "source_more": 1},
    "all fields": {
        "causation_id": "01HF7YAT0072TECMQ49PKZ57H0",
        "correlation_id": "msg_1",
        "traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01",
        "metadata": {"z": 1, "a": {"é": 2}},
        "source": {"agent": "build", "adapter": "opencode", "version": "1.18"},
    },
}


def events() -> dict[str, StreamEvent]:
    """The events by name, in chain order."""
    made: dict[str, StreamEvent] = {}
    for number, name in enumerate([*PAYLOADS, *MORE]):
        made[name] = StreamEvent.parse(
            {
                "id": f"01HF7YAT00{number:016d}",
                "ts": 1_700_000_000_000 + number,
                "type": "execution.step",
                "stream_id": "ses_vectors",
                "idempotency_key": f"vector:{number}",
                "actor": "build",
                "source": {"agent": "build", "adapter": "test"},
                "payload": PAYLOADS.get(name, {"n": number}),
                **MORE.get(name, {}),
            }
        )
    return made


def computed() -> list[dict[str, str]]:
    previous = GENESIS
    rows = []
    for name, event in events().items():
        encoded = encode(event)
        previous = chain(previous, encoded.digest_form)
        rows.append(
            {
                "name": name,
                "canonical": encoded.canonical.decode(),
                "payload_sha256": encoded.payload_sha256,
                "hash": previous.hex(),
            }
        )
    return rows


if __name__ == "__main__":
    FILE.write_text(json.dumps(computed(), indent=1, ensure_ascii=True) + "\n")
