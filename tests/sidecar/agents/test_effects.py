"""Effects under a policy, with a ledger, on disk.

Here a runner works alone; ``test_effects_in_doubt.py`` has agents, loops and restarts of the whole runtime.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from sidecar.agents.effects.ledger import MAX_RESULT
from sidecar.agents.effects.policy import Effect, EffectPolicy
from sidecar.agents.effects.runner import LONGEST_SLEEP, MOST_ATTEMPTS, EffectRunner, Reconciled
from sidecar.agents.inputs import effects_stream
from streams.errors import StoreFailed, StoreFenced
from streams.event import StreamEvent
from streams.hashing import canonical
from streams.log.log import Log
from streams.store import Record, StreamStore
from streams.stores.directory import LOCK
from tests.sidecar.agents.bench import Bench, the_process_ends
from tests.sidecar.agents.kinds import AGENT, Clock, Policy, Work, never_ends, request
from tests.sidecar.agents.support import records


class TestAttempts:
    async def test_a_retry_increments_the_attempt(self, bench: Bench) -> None:
        kind = Work(OSError("down"), OSError("down"), {"ok": True})
        asked = await request(bench.store, bench.identity)
        await bench.run(bench.runner(kind), asked)
        assert await bench.steps() == [
            ("started", 1),
            ("failed", 1),
            ("started", 2),
            ("failed", 2),
            ("started", 3),
            ("completed", 3),
        ]
        step = await bench.last()
        assert (step.attempt, step.idempotency_key, step.status, step.result) == (3, "key-1", "completed", {"ok": True})
        assert kind.keys == ["key-1"] * 3, "the other side sees one key"

    async def test_the_last_failed_attempt_is_final(self, bench: Bench) -> None:
        kind = Work(*[OSError("down")] * 9)
        asked = await request(bench.store, bench.identity)
        await bench.run(bench.runner(kind, Policy(attempts=4)), asked)
        assert len(kind.keys) == 4
        assert await bench.answers() == {asked.event.id: [("failed", None)]}

    async def test_a_permanent_failure_is_not_tried_again(self, bench: Bench) -> None:
        class Foreign(Exception):
            permanent = True

        kind = Work(Foreign("no"))
        asked = await request(bench.store, bench.identity)
        await bench.run(bench.runner(kind), asked)
        assert len(kind.keys) == 1
        step = await bench.last("key-1")
        assert (step.final, step.error) == (True, "Foreign: no")

    async def test_attempts_are_counted_across_crashes(self, bench: Bench) -> None:
        asked = await request(bench.store, bench.identity)
        kind = Work()
        for _ in range(10):
            await bench.crash(kind, asked, at="effect-done")
        assert len(kind.keys) == 3
        await bench.run(bench.runner(kind), asked)
        assert len(kind.keys) == 3
        assert await bench.answers() == {asked.event.id: [("failed", "attempts-exhausted")]}

    async def test_a_policy_that_was_lowered_ends_the_effect(self, bench: Bench) -> None:
        asked = await request(bench.store, bench.identity)
        kind = Work(*[OSError("down")] * 9)
        runner = bench.runner(kind, Policy(attempts=5, pause=3600))
        bench.clock.before_sleep = the_process_ends
        await bench.run(runner, asked)
        bench.clock.before_sleep = None
        await bench.run(bench.runner(kind, Policy(attempts=1)), asked)
        assert len(kind.keys) == 1
        assert await bench.answers() == {asked.event.id: [("failed", "attempts-exhausted")]}

    async def test_an_attempt_has_a_deadline(self, bench: Bench) -> None:
        kind = Work(never_ends, "late")
        asked = await request(bench.store, bench.identity)
        await bench.run(bench.runner(kind, Policy(deadline=0.01)), asked)
        assert [step for step, _ in await bench.steps()] == ["started", "failed", "started", "completed"]

    async def test_a_kind_that_cancels_itself_has_failed(self, bench: Bench) -> None:
        kind = Work(asyncio.CancelledError(), "done")
        asked = await request(bench.store, bench.identity)
        await bench.run(bench.runner(kind), asked)
        assert await bench.answers() == {asked.event.id: [("completed", "done")]}

    @pytest.mark.parametrize("method", ["max_attempts", "backoff_seconds", "deadline_seconds"])
    async def test_a_policy_that_raises_leaves_no_effect_without_an_answer(self, bench: Bench, method: str) -> None:
        class Broken(Policy):
            pass

        def fails(*args: Any, **more: Any) -> Any:
            raise ZeroDivisionError

        setattr(Broken, method, fails)
        asked = await request(bench.store, bench.identity)
        await bench.run(bench.runner(Work(OSError("down")), Broken()), asked)
        (answer,) = (await bench.answers())[asked.event.id]
        assert answer[0] == "failed"

    async def test_an_unknown_kind_fails_for_good_and_was_never_started(self, bench: Bench) -> None:
        asked = await request(bench.store, bench.identity)
        await bench.run(bench.runner(None), asked)
        assert await bench.steps() == [("failed", 0)]
        assert await bench.answers() == {asked.event.id: [("failed", "unknown-kind")]}


class TestRepeatable:
    """Kinds whose request says that the first attempt may have begun."""

    @pytest.mark.parametrize("attempts", [1, 3])
    @pytest.mark.parametrize("at", ["effect-started", "effect-done", "effect-recorded"])
    async def test_it_has_one_record_and_a_kill_loses_nothing(self, bench: Bench, at: str, attempts: int) -> None:
        kind, policy = Work(), Policy(attempts=attempts)
        kind.is_repeatable = True
        asked = await request(bench.store, bench.identity)
        await bench.crash(kind, asked, at=at, policy=policy)
        next_ = bench.runner(kind, policy)
        next_.began = bench.store.head
        await bench.run(next_, asked)
        ended = [("completed", 1)] if at == "effect-recorded" else [("failed", 1), ("started", 2), ("completed", 2)]
        assert await bench.steps() == ended

    async def test_each_crash_allows_as_many_attempts_as_a_new_effect_has_up_to_a_limit(self, bench: Bench) -> None:
        kind = Work()
        kind.is_repeatable = True
        asked = await request(bench.store, bench.identity)
        for _ in range(MOST_ATTEMPTS - 2):
            await bench.crash(kind, asked, at="effect-done", began=asked.position)
        assert await bench.answers() == {} and len(kind.keys) == MOST_ATTEMPTS - 2
        for _ in range(10):
            await bench.crash(kind, asked, at="effect-done", began=asked.position)
        assert len(kind.keys) == MOST_ATTEMPTS - 1, "the first one may have been made before"
        assert await bench.answers() == {asked.event.id: [("failed", "attempts-exhausted")]}


class TestBackOff:
    async def test_it_follows_the_policy(self, bench: Bench) -> None:
        kind = Work(OSError("down"), OSError("down"))
        asked = await request(bench.store, bench.identity)
        await bench.run(bench.runner(kind, Policy(pause=7.0)), asked)
        assert bench.clock.slept == [7.0, 14.0]

    @pytest.mark.parametrize("passed", [0.0, 100.0, 500.0, 999.0, 5000.0])
    async def test_a_restart_neither_shortens_nor_lengthens_it(self, bench: Bench, passed: float) -> None:
        kind = Work(OSError("down"))
        asked = await request(bench.store, bench.identity)
        runner = bench.runner(kind, Policy(pause=1000.0))
        bench.clock.before_sleep = the_process_ends
        began = bench.clock.now_ms
        await bench.run(runner, asked)
        bench.clock.before_sleep = None
        bench.clock.slept.clear()
        bench.clock.now_ms = began + round(passed * 1000)
        await bench.run(bench.runner(kind, Policy(pause=1000.0)), asked)
        assert (await bench.last()).status == "completed"
        assert sum(bench.clock.slept) == pytest.approx(max(1000.0 - passed, 0.0))

    async def test_a_clock_that_was_set_back_does_not_lengthen_it(self, bench: Bench) -> None:
        year_ms = 365 * 24 * 3_600_000
        kind = Work(OSError("down"))
        asked = await request(bench.store, bench.identity)
        runner = bench.runner(kind, Policy(pause=100.0))

        async def set_back() -> None:
            bench.clock.now_ms -= year_ms
            bench.clock.before_sleep = None

        bench.clock.before_sleep = set_back
        await bench.run(runner, asked)
        assert sum(bench.clock.slept) == pytest.approx(100.0)

    async def test_a_clock_that_was_set_forward_ends_it_soon(self, bench: Bench) -> None:
        kind = Work(OSError("down"))
        asked = await request(bench.store, bench.identity)

        async def set_forward() -> None:
            bench.clock.now_ms += 3_600_000

        bench.clock.before_sleep = set_forward
        await bench.run(bench.runner(kind, Policy(pause=3000.0)), asked)
        assert sum(bench.clock.slept) <= LONGEST_SLEEP

    def test_the_default_doubles_with_a_jitter_that_depends_only_on_the_effect(self) -> None:
        policy, effect = EffectPolicy(), Effect("http", {}, "run")
        pauses = [policy.backoff_seconds(effect=effect, attempt=n) for n in range(1, 12)]
        assert pauses == [policy.backoff_seconds(effect=effect, attempt=n) for n in range(1, 12)]
        for n, pause in enumerate(pauses):
            plain = min(2.0**n, policy.retry.longest_s)
            assert plain <= pause <= plain * 1.2
        others = {policy.backoff_seconds(effect=Effect("http", {"n": n}, "run"), attempt=1) for n in range(50)}
        assert len(others) > 10


class TestReuse:
    async def test_a_completed_result_with_the_same_key_is_reused(self, bench: Bench) -> None:
        kind = Work({"id": 7})
        first = await request(bench.store, bench.identity, n=1, key="same")
        second = await request(bench.store, bench.identity, n=2, key="same")
        await bench.run(bench.runner(kind), first)
        await bench.run(bench.runner(kind), second)
        assert len(kind.keys) == 1
        assert await bench.answers() == {one.event.id: [("completed", {"id": 7})] for one in (first, second)}
        done = [r.event for r in await records(bench.store, effects_stream(AGENT)) if r.event.type.endswith("ed")]
        assert done[-1].payload["reused"] == done[1].id

    async def test_requests_at_once_with_one_key_execute_once(self, bench: Bench) -> None:
        kind = Work()
        asked = [await request(bench.store, bench.identity, n=n, key="same") for n in range(20)]
        await bench.run(bench.runner(kind), *asked)
        assert len(kind.keys) == 1
        assert {id_: len(found) for id_, found in (await bench.answers()).items()} == {r.event.id: 1 for r in asked}

    async def test_attempts_are_counted_by_key_and_every_request_is_answered(self, bench: Bench) -> None:
        kind = Work(*[OSError("down")] * 99)
        asked = [await request(bench.store, bench.identity, n=n, key="same") for n in range(3)]
        await bench.run(bench.runner(kind), *asked)
        assert len(kind.keys) == 3
        assert {id_: len(found) for id_, found in (await bench.answers()).items()} == {r.event.id: 1 for r in asked}

    async def test_an_effect_offered_again_is_not_done_again(self, bench: Bench) -> None:
        kind = Work()
        asked = await request(bench.store, bench.identity)
        for _ in range(5):
            await bench.run(bench.runner(kind), asked, asked, asked)
        assert len(kind.keys) == 1
        assert await bench.steps() == [("started", 1), ("completed", 1)]

    async def test_two_runners_over_one_store_execute_once(self, bench: Bench) -> None:
        kind = Work()
        runners = [bench.runner(kind) for _ in range(2)]
        asked = [await request(bench.store, bench.identity, n=n) for n in range(40)]
        for one in asked:
            for runner in runners:
                runner.offer(one)
        await asyncio.gather(*(bench.run(runner) for runner in runners))
        assert sorted(kind.keys) == sorted(f"key-{n}" for n in range(40))

    @pytest.mark.parametrize("dies", [False, True])
    async def test_an_attempt_of_another_runner_is_left_alone_while_that_runner_lives(
        self, bench: Bench, dies: bool
    ) -> None:
        goes_on = asyncio.Event()
        kind = Work(goes_on.wait)
        first, second = bench.runner(kind), bench.runner(kind)
        asked = await request(bench.store, bench.identity)
        first.offer(asked)
        while await bench.steps() != [("started", 1)]:
            await asyncio.sleep(0.001)
        second.offer(asked)
        await asyncio.sleep(0.01)
        assert second.is_busy and await bench.steps() == [("started", 1)]
        if dies:
            await first.close()
        goes_on.set()
        await bench.run(first)
        await bench.run(second)
        again = [("failed", 1), ("started", 2), ("completed", 2)]
        assert await bench.steps() == [("started", 1), *(again if dies else [("completed", 1)])]


class TestTheLedger:
    async def test_a_long_result_is_kept_as_digest_size_and_beginning(self, bench: Bench) -> None:
        long = {"text": "é" * MAX_RESULT}
        asked = await request(bench.store, bench.identity)
        await bench.run(bench.runner(Work(long)), asked)
        kept = (await bench.last()).result
        assert kept["$sha256"] == sha256(canonical(long)).hexdigest()
        assert kept["bytes"] == len(canonical(long)) > MAX_RESULT
        assert len(canonical(kept)) < 40_000

    @pytest.mark.parametrize("result", [object(), float("nan"), {1: 2}, {"a": {3}}, "\ud800", 2**100, b"bytes"])
    async def test_whatever_a_kind_returns_its_request_is_answered_and_it_runs_once(
        self, bench: Bench, result: Any
    ) -> None:
        kind = Work(result)
        asked = await request(bench.store, bench.identity)
        await bench.run(bench.runner(kind), asked)
        assert len(kind.keys) == 1
        assert list(await bench.answers()) == [asked.event.id]

    async def test_a_result_that_cannot_be_redacted_is_final(self, bench: Bench) -> None:
        def clean(value: Any) -> Any:
            raise ZeroDivisionError

        kind = Work()
        asked = await request(bench.store, bench.identity)
        await bench.run(bench.runner(kind, clean=clean), asked)
        assert len(kind.keys) == 1
        assert list(await bench.answers()) == [asked.event.id]

    async def test_whatever_an_error_says_it_is_recorded(self, bench: Bench) -> None:
        asked = await request(bench.store, bench.identity)
        texts = ("\ud800", "\x00\x1b[31m", "x" * 10_000, "")
        await bench.run(bench.runner(Work(*map(OSError, texts)), Policy(attempts=4)), asked)
        assert list(await bench.answers()) == [asked.event.id]

    async def test_results_and_errors_are_redacted(self, bench: Bench) -> None:
        def clean(value: Any) -> Any:
            return "…" if isinstance(value, str) else {"token": "…"}

        asked = await request(bench.store, bench.identity)
        await bench.run(bench.runner(Work(OSError("secret"), {"token": "secret"}), clean=clean), asked)
        for record in await records(bench.store, effects_stream(AGENT)):
            assert b"secret" not in canonical(record.event.fields())

    @pytest.mark.parametrize(("fail", "durable"), [(4, False), (2, True)])
    async def test_a_failed_write_is_tried_again_and_is_this_runners_own_if_it_was_durable(
        self, bench: Bench, fail: int, durable: bool
    ) -> None:
        kind = Work()
        asked = await request(bench.store, bench.identity)
        failing = Failing(bench.store, fail=fail, durable=durable)
        runner = EffectRunner(failing, bench.identity, {"work": kind}, policy=Policy(), sleep=bench.clock.sleep)
        await bench.run(runner, asked)
        assert len(kind.keys) == 1
        assert await bench.steps() == [("started", 1), ("completed", 1)]


class Lease:
    """In place of the leases of agents: lost while an effect runs."""

    def __init__(self) -> None:
        self.owned = asyncio.Event()
        self.owned.set()

    def holds(self, agent: str) -> bool:
        return self.owned.is_set()

    async def until_owned(self, agent: str) -> None:
        await self.owned.wait()


@pytest.mark.parametrize("cut_off", [False, True])
@pytest.mark.parametrize("ends", ["completed", "failed", "in_doubt"])
async def test_the_end_of_an_attempt_is_recorded_only_by_the_owner(bench: Bench, ends: str, cut_off: bool) -> None:
    lease = Lease()

    async def ending() -> Any:
        lease.owned.clear()
        if ends != "completed":
            raise OSError("down") if ends == "failed" else TimeoutError
        return Reconciled(False) if cut_off else None

    kind = Work(ending, effect_class="unsafe" if ends == "in_doubt" else "idempotent")
    asked = await request(bench.store, bench.identity)
    if cut_off:
        kind.reconcile = lambda effect, key: ending()  # type: ignore[method-assign]
        await bench.crash(kind, asked)
    runner = bench.runner(kind, Policy(attempts=1), owner=lease)
    await bench.run(runner, asked)
    assert await bench.steps() == [("started", 1)]
    lease.owned.set()
    async with asyncio.timeout(20):
        while runner._tasks:
            await asyncio.sleep(0.001)
    assert await bench.steps() == [("started", 1), (ends if not cut_off or ends == "in_doubt" else "failed", 1)]


class Failing:
    """A store of which every other append fails, ``fail`` times; only what the ledger may use exists."""

    def __init__(self, store: StreamStore, *, fail: int = 0, durable: bool = False) -> None:
        self._store, self._fail, self._durable = store, fail, durable
        self._appends = 0

    @property
    def head(self) -> int:
        return self._store.head

    async def find_each(self, keys: Any) -> list[Record | None]:
        return await self._store.find_each(keys)

    async def append(self, events: Any, **more: Any) -> list[Record]:
        self._appends += 1
        if self._appends % 2 and self._fail:
            self._fail -= 1
            if self._durable:
                await self._store.append(events, **more)
            raise StoreFailed("as asked")
        return await self._store.append(events, **more)


@pytest.mark.parametrize("fenced", [False, True])
async def test_an_effect_that_was_asked_for_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fenced: bool
) -> None:
    clock = Clock()
    identity = clock.identity()
    log = await Log.open(tmp_path / "store", identity)
    asked = await request(log, identity)
    if fenced:
        (log.store / LOCK).unlink()
    kind = Work()
    refused = asyncio.Event()
    append = log.append

    async def noted(events: Sequence[StreamEvent], **more: Any) -> list[Record]:
        try:
            return await append(events, **more)
        except StoreFenced:
            refused.set()
            raise

    monkeypatch.setattr(log, "append", noted)
    runner = EffectRunner(log, identity, {"work": kind}, policy=Policy(), sleep=clock.sleep)
    runner.offer(asked)
    async with asyncio.timeout(20):
        while runner.is_busy and not refused.is_set():
            await asyncio.sleep(0.001)
    await runner.close()
    await log.close()
    assert refused.is_set() == fenced
    assert len(kind.keys) == (0 if fenced else 1)
