"""Time, randomness and ids come from one place and can be reproduced."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from ulid import ULID

from streams.errors import InvalidEvent
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


def test_the_same_seed_gives_the_same_everything() -> None:
    def life(seed: int) -> list[Any]:
        identity = seeded_identity(seed)
        return [identity.ulid(), identity.now_ms(), identity.nonce(), identity.stamp(FIELDS).fields(), identity.ulid()]

    assert life(1) == life(1)
    assert life(1) != life(2)


def test_a_seeded_clock_starts_and_steps_as_told() -> None:
    identity = seeded_identity(1, start_ms=5000, step_ms=10)
    assert [identity.now_ms() for _ in range(3)] == [5000, 5010, 5020]
    frozen = seeded_identity(1, start_ms=5000, step_ms=0)
    assert [frozen.now_ms() for _ in range(3)] == [5000] * 3


@pytest.mark.parametrize("identity", [system_identity(), seeded_identity(1), seeded_identity(1, step_ms=0)])
def test_ulids_increase_strictly(identity: Identity) -> None:
    made = [identity.ulid() for _ in range(5000)]
    assert all(ULID_TEXT.fullmatch(each) for each in made)
    assert all(earlier < later for earlier, later in pairwise(made))


def test_ulids_increase_when_the_clock_stands_or_steps_back() -> None:
    identity = counting([1000, 1000, 999, 0, 500, 1000, 1001])
    made = [identity.ulid() for _ in range(7)]
    assert made == sorted(set(made))
    assert made[-1][:10] > made[0][:10], "the time continues when the clock has caught up"


def test_ulids_increase_when_the_randomness_is_used_up() -> None:
    identity = Identity(lambda: 1000, lambda count: b"\xff" * count)
    first, second = identity.ulid(), identity.ulid()
    assert second > first and ULID_TEXT.fullmatch(second)


def test_ulids_are_unique_and_ordered_in_each_of_many_threads() -> None:
    identity = system_identity()

    def make(_: int) -> list[str]:
        return [identity.ulid() for _ in range(2000)]

    with ThreadPoolExecutor(8) as threads:
        lists = list(threads.map(make, range(8)))
    assert all(made == sorted(made) for made in lists)
    assert len({each for made in lists for each in made}) == 16_000


def test_a_ulid_holds_its_time() -> None:
    from ulid import ULID

    assert ULID.from_str(seeded_identity(1, start_ms=1_234_567_890_123).ulid()).milliseconds == 1_234_567_890_123


def test_nonces_are_256_bits() -> None:
    made = {system_identity().nonce() for _ in range(100)}
    assert len(made) == 100 and all(re.fullmatch("[0-9a-f]{64}", each) for each in made)


class TestStamp:
    def test_what_is_missing_is_injected(self) -> None:
        event = seeded_identity(1, start_ms=7000).stamp(FIELDS)
        assert ULID_TEXT.fullmatch(event.id)
        assert (event.schema_version, event.idempotency_key) == (1, f"event:{event.id}")
        assert event.ts >= 7000
        assert (event.causation_id, event.correlation_id) == (None, None), "a cause is never guessed"

    def test_what_upstream_gave_is_kept(self) -> None:
        given = {**FIELDS, "id": "01HF7YAT0072TECMQ49PKZ57H0", "ts": 0, "schema_version": 3, "idempotency_key": "a:b"}
        event = seeded_identity(1).stamp(given)
        assert {name: event.fields()[name] for name in given} == given

    @pytest.mark.parametrize("more", [{"timestamp": 5}, {"timestamp": 5, "ts": None}])
    def test_an_upstream_timestamp_is_kept(self, more: dict[str, Any]) -> None:
        event = seeded_identity(1).stamp({**FIELDS, **more})
        assert event.ts == 5 and "timestamp" not in event.fields()

    @pytest.mark.parametrize("name", ["id", "ts", "timestamp", "schema_version", "idempotency_key"])
    def test_none_is_missing(self, name: str) -> None:
        event = seeded_identity(1).stamp({**FIELDS, name: None})
        assert event.id and event.ts and event.schema_version == 1 and event.idempotency_key == f"event:{event.id}"

    def test_the_given_fields_are_not_changed(self) -> None:
        given = {**FIELDS, "timestamp": 5}
        seeded_identity(1).stamp(given)
        assert given == {**FIELDS, "timestamp": 5}

    def test_a_bad_event_is_refused(self) -> None:
        with pytest.raises(InvalidEvent, match="actor"):
            seeded_identity(1).stamp({**FIELDS, "actor": None})

    def test_times_are_not_read_where_they_are_given(self) -> None:
        assert counting([]).stamp({**FIELDS, "id": "01HF7YAT0072TECMQ49PKZ57H0", "ts": 9}).ts == 9


def identity_of(ms: int, drawn: bytes) -> Identity:
    return Identity(lambda: ms, lambda count: drawn[:count])


def test_ids_are_as_the_library_writes_them() -> None:
    random = Random(1)
    for _ in range(200):
        ms, drawn = random.randrange(2**48), random.randbytes(10)
        assert identity_of(ms, drawn).ulid() == str(ULID(ms.to_bytes(6, "big") + drawn))


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
