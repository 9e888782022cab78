"""Time, randomness and ids come from one place and can be reproduced."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from random import Random
from typing import Any

import pytest
from ulid import ULID

from streams.event import ULID_TEXT
from streams.identity import Identity, seeded_identity, system_identity

FIELDS: dict[str, Any] = {
    "type": "human.input",
    "stream_id": "ses_a",
    "actor": "user",
    "source": {"agent": "user", "adapter": "test"},
}


def counting(clock: list[int]) -> Identity:
    """A clock that reads the given times, and random bytes that are all zero."""
    times = iter(clock)
    return Identity(lambda: next(times), lambda count: bytes(count))


def test_ulids_increase_when_the_clock_stands_or_steps_back() -> None:
    identity = counting([1000, 1000, 999, 0, 500, 1000, 1001])
    made = [identity.ulid() for _ in range(7)]
    assert made == sorted(set(made))
    assert made[-1][:10] > made[0][:10], "the time continues when the clock has caught up"


def test_ulids_increase_when_the_randomness_is_used_up() -> None:
    identity = Identity(lambda: 1000, lambda count: b"\xff" * count)
    first, second = identity.ulid(), identity.ulid()
    assert second > first and ULID_TEXT.fullmatch(second)


def test_ulids_are_written_as_the_library_writes_them() -> None:
    random = Random(3)
    cases = [(1, b"\0" * 10), (2**48 - 1, b"\xff" * 10), *((3**n, random.randbytes(10)) for n in range(30))]
    for milliseconds, bits in cases:
        made = Identity(partial(int, milliseconds), lambda _, bits=bits: bits).ulid()  # type: ignore[misc]
        assert made == str(ULID(milliseconds.to_bytes(6) + bits))


def test_ulids_are_unique_and_ordered_in_each_of_many_threads() -> None:
    identity = system_identity()

    def make(_: int) -> list[str]:
        return [identity.ulid() for _ in range(2000)]

    with ThreadPoolExecutor(8) as threads:
        lists = list(threads.map(make, range(8)))
    assert all(made == sorted(made) for made in lists)
    assert len({each for made in lists for each in made}) == 16_000


class TestStamp:
    def test_what_is_missing_is_injected(self) -> None:
        event = seeded_identity(1, start_ms=7000).stamp(FIELDS)
        assert ULID_TEXT.fullmatch(event.id)
        assert (event.schema_version, event.idempotency_key) == (1, f"event:{event.id}")
        assert event.ts >= 7000
        assert (event.causation_id, event.correlation_id) == (None, None), "a cause is never guessed"

    @pytest.mark.parametrize("more", [{"timestamp": 5}, {"timestamp": 5, "ts": None}])
    def test_an_upstream_timestamp_is_kept(self, more: dict[str, Any]) -> None:
        event = seeded_identity(1).stamp({**FIELDS, **more})
        assert event.ts == 5 and "timestamp" not in event.fields()

    @pytest.mark.parametrize("name", ["id", "ts", "timestamp", "schema_version", "idempotency_key"])
    def test_none_is_missing(self, name: str) -> None:
        event = seeded_identity(1).stamp({**FIELDS, name: None})
        assert event.id and event.ts and event.schema_version == 1 and event.idempotency_key == f"event:{event.id}"


def test_a_forked_process_draws_other_randomness() -> None:
    identity = system_identity()
    identity.nonce()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, identity.nonce().encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 100).decode() != identity.nonce()
    os.close(read)
    os.close(write)
