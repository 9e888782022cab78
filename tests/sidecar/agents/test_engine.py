"""The engine of one agent: whole batches, in order, and never half.

That each input is handled once, whatever repeats, fails or restarts, is in ``test_oracle.py``; dead letters are in
``tests/sidecar/cli/test_troubles.py``.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from sidecar.agents.checks.replay import replay
from sidecar.agents.deciding import AgentFailed
from sidecar.agents.effects.policy import DEFAULT_POLICY
from sidecar.agents.inputs import agent_stream, state_hash
from sidecar.agents.loading import UserAgent
from sidecar.agents.runtime import Runtime, UnknownAgent
from sidecar.care.removal import plan_prune
from sidecar.config import WorkerConfig
from sidecar.home import Home
from sidecar.worker import Worker
from streams.errors import StreamError
from streams.identity import seeded_identity
from streams.log.log import Log
from streams.log.prune_plan import PruneRequest
from streams.store import StreamStore
from tests.memory import MemoryStore
from tests.sidecar.agents.agents import Counter, Other, Watcher
from tests.sidecar.agents.support import command, records, running, settled, state, steps, types


class BeginsAnywhere(UserAgent):
    begins_anywhere = True


class WithoutTurns(BeginsAnywhere):
    has_turns = False


class TestCommands:
    async def test_a_command_its_outputs_and_the_state_are_one_batch(self, store: StreamStore) -> None:
        async with running(store, Counter) as runtime:
            handled = await runtime.command("counter", command("a", by=5))
            assert handled.outcome == "done"
            assert [record.event.type for record in handled.records] == ["add", "counter.added"]
            assert handled.records[-1].event.metadata["state"] == state_hash({"total": 5, "results": []})
            assert state(runtime) == {"total": 5, "results": []}
        assert await types(store) == ["agent.installed", "add", "counter.added"]

    async def test_commands_that_wait_together_share_a_commit_and_keep_their_order(self, store: StreamStore) -> None:
        async with running(store, Counter) as runtime:
            handled = await asyncio.gather(*(runtime.command("counter", command(f"k{n}", by=n)) for n in range(200)))
            assert {one.outcome for one in handled} == {"done"}
        added = [
            r.event.payload for r in await records(store, agent_stream("counter")) if r.event.type == "counter.added"
        ]
        assert [one["by"] for one in added] == list(range(200))
        assert [one["was"] for one in added] == [sum(range(n)) for n in range(200)]

    async def test_what_an_agent_handled_is_counted_over_its_lives(self, store: StreamStore) -> None:
        for life in range(3):
            async with running(store, Counter) as runtime:
                assert runtime.status()[0]["handled"] == life * 2
                await asyncio.gather(*(runtime.command("counter", command(f"k{life}{n}")) for n in range(2)))
                assert runtime.status()[0]["handled"] == life * 2 + 2

    async def test_an_output_that_cannot_be_applied_is_not_recorded(self, store: StreamStore) -> None:
        async with running(store, Counter) as runtime:
            answers = await asyncio.gather(
                runtime.command("counter", command("a", by=3)),
                runtime.command("counter", command("b", "spoil")),
                runtime.command("counter", command("c", by=4)),
                return_exceptions=True,
            )
            assert isinstance(answers[1], AgentFailed)
            assert state(runtime)["total"] == 7
        assert "counter.spoiled" not in await types(store)

    async def test_a_command_whose_record_was_pruned_is_still_a_duplicate(self) -> None:
        store = MemoryStore()
        async with running(store, Counter) as runtime:
            for n in range(5):
                await runtime.command("counter", command(f"k{n}", by=n + 1))
            await store.prune({agent_stream("counter"): 3}, at_ms=0)
            async with asyncio.timeout(5):
                again = [runtime.command("counter", command(f"k{n}", by=n + 1)) for n in range(5)]
                assert {(await one).outcome for one in again} == {"duplicate"}
                assert (await runtime.command("counter", command("new"))).outcome == "done"

    async def test_an_unknown_agent_is_an_error(self, store: StreamStore) -> None:
        async with running(store, Counter) as runtime:
            with pytest.raises(UnknownAgent):
                await runtime.command("nobody", command("a"))

    async def test_a_closed_log_is_told_to_whoever_waits(self, open_store: Any) -> None:
        store = await open_store()
        async with running(store, Counter) as runtime:
            await store.close()
            with pytest.raises(StreamError):
                await runtime.command("counter", command("a"))


class TestTheLog:
    async def test_events_while_no_runtime_ran_are_handled_by_the_next(self, store: StreamStore) -> None:
        async with running(store, Counter, Watcher):
            pass
        await store.append(steps("error", "completed", "error"))
        async with running(store, Counter, Watcher) as runtime:
            await settled(runtime, store)
            assert state(runtime, "watcher") == {"failed": 2}

    async def test_a_new_agent_begins_at_the_end_of_the_log(self, store: StreamStore) -> None:
        await store.append(steps("error", "error"))
        async with running(store, Counter, Watcher) as runtime:
            await settled(runtime, store)
            assert state(runtime, "watcher") == {"failed": 0}

    @pytest.mark.parametrize("before", [(), ("completed", "error")], ids=["empty log", "older records"])
    async def test_an_agent_that_begins_anywhere_begins_once(self, open_store: Any, before: tuple[str, ...]) -> None:
        store = await open_store()
        if before:
            await store.append(steps(*before))
        runtime = Runtime(store, seeded_identity(7), [BeginsAnywhere("tests:Watcher", Watcher)])
        await runtime.start()
        # A kill: nothing of this runtime is kept from here on.
        for task in (runtime._reading, runtime.engines["watcher"]._task):
            assert task is not None
            task.cancel()
        await store.append(steps("error", "completed", "error", "error"))
        await store.close()

        store = await open_store()
        runtime = Runtime(store, seeded_identity(8), [BeginsAnywhere("tests:Watcher", Watcher)])
        await runtime.start()
        await settled(runtime, store)
        assert state(runtime, "watcher") == {"failed": 3}
        await runtime.close()
        await store.close()

    async def test_an_agent_without_turns_records_only_what_follows_once(self, open_store: Any) -> None:
        """Its log began when it recorded its inputs; then two engines run it, and both are killed."""
        store = await open_store()
        async with running(store, Watcher) as runtime:
            await store.append(steps("error", "completed"))
            await settled(runtime, store)
        both = [Runtime(store, seeded_identity(n), [WithoutTurns("tests:Watcher", Watcher)]) for n in (8, 9)]
        for runtime in both:
            await runtime.start()
        happened = await store.append(steps("", "", "error", "completed", "error")[2:])
        for runtime in both:
            await settled(runtime, store)
            assert state(runtime, "watcher") == {"failed": 3}
        for runtime in both:
            for task in (runtime._reading, runtime.engines["watcher"]._task):
                assert task is not None
                task.cancel()
        await store.close()

        store = await open_store()
        (again,) = [WithoutTurns("tests:Watcher", Watcher)]
        runtime = Runtime(store, seeded_identity(10), [again])
        await runtime.start()
        await settled(runtime, store)
        assert state(runtime, "watcher") == {"failed": 3} and runtime.status()[0]["handled"] == 3
        own = [r.event for r in await records(store, agent_stream("watcher"))]
        follows = ["watcher.failed", "add"]
        assert [event.type for event in own] == ["agent.installed", "agent.received", *follows * 3]
        causes = [happened[0].event.id, happened[2].event.id]
        assert [event.causation_id for event in own[4:]] == [causes[0]] * 2 + [causes[1]] * 2
        assert (await replay(store, again)).difference is None
        await runtime.close()
        await store.close()

    async def test_an_event_that_an_agent_fails_on_is_a_dead_letter_and_others_go_on(self, store: StreamStore) -> None:
        async with running(store, Counter, Watcher) as runtime:
            await store.append(steps("error", "broken", "error"))
            await settled(runtime, store)
            assert state(runtime, "watcher") == {"failed": 2}
            (letter,) = runtime.view.dead.values()
            assert letter.type == "execution.step"
            assert re.fullmatch(
                r"receive raised RuntimeError at agents\.py:\d+: as asked \(agents\.py:\d+ in receive\)", letter.reason
            )
        async with running(store, Counter, Watcher) as runtime:
            await settled(runtime, store)
            assert len(runtime.view.dead) == 1, "it is not tried again by itself"

    async def test_a_command_carries_depth_cause_and_trace(self, store: StreamStore) -> None:
        async with running(store, Counter, Other) as runtime:
            await runtime.command("counter", command("a", "tell", to="other"))
            await settled(runtime, store)
        sent = next(r.event for r in await records(store, "agent/counter") if r.event.metadata.get("to"))
        taken = next(r.event for r in await records(store, "agent/other") if r.event.type == "agent.received")
        assert (sent.metadata["depth"], sent.metadata["route"], sent.correlation_id) == (1, "log", sent.id)
        assert taken.causation_id == sent.id
        assert taken.traceparent == sent.traceparent

    @pytest.mark.parametrize(
        ("said", "health", "reasons"),
        [
            ("READY", "READY", []),
            (("DEGRADED", ["no stock", 5]), "DEGRADED", ["no stock", "5"]),
            (("FAILED", ["gone"]), "FAILED", ["gone"]),
            ("GREAT", "FAILED", ["health returned 'GREAT'"]),
            (None, "FAILED", ["health returned None"]),
        ],
    )
    async def test_an_agent_tells_its_health_with_its_reasons(
        self, store: StreamStore, said: Any, health: str, reasons: list[str]
    ) -> None:
        class Feeling(Counter):
            def health(self) -> Any:
                return said

        async with running(store, Feeling) as runtime:
            (row,) = runtime.status()
        assert (row["health"], row["reasons"]) == (health, reasons)

    async def test_the_time_that_an_input_takes_ends_when_its_outcome_is_durable(
        self, store: StreamStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        times: list[float] = []
        append, writing = store.append, 0.0

        def count(what: str, agent: str, seconds: float) -> None:
            times.extend([seconds] if what == "processed" else [])

        async def timed(events: Any, **more: Any) -> Any:
            nonlocal writing
            begin = asyncio.get_running_loop().time()
            assert not times, "it is not durable yet"
            found = await append(events, **more)
            writing = asyncio.get_running_loop().time() - begin
            return found

        async with running(store, Counter, count=count) as runtime:
            monkeypatch.setattr(store, "append", timed)
            await runtime.command("counter", command("a"))
        (seconds,) = times
        assert seconds >= writing > 0

    async def test_an_event_is_ignored_only_by_a_state_that_is_in_the_log(
        self, store: StreamStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Latch(Watcher):
            def receive(self, event: dict[str, Any]) -> list[dict[str, Any]]:
                if event["type"] == "shut" or not self.failed:
                    return [{"type": "watcher.failed", "payload": {}}]
                return []

        append, asked, release = store.append, asyncio.Event(), asyncio.Event()

        async def held(events: Any, **more: Any) -> Any:
            asked.set()
            await release.wait()
            return await append(events, **more)

        step = steps("completed")[0]
        async with running(store, Latch) as runtime:
            engine = runtime.engines["watcher"]
            assert not engine.ignores(step)
            monkeypatch.setattr(store, "append", held)
            shutting = asyncio.ensure_future(runtime.command("watcher", command("a", "shut")))
            await asked.wait()
            try:
                assert state(runtime, "watcher") == {"failed": 1}
                assert not engine.ignores(step), "the log may still refuse what changed the state"
            finally:
                release.set()
            await shutting
            await settled(runtime, store)
            assert engine.ignores(step)


async def test_no_limit_removes_the_memory_of_an_agent(tmp_path: Path) -> None:
    log = await Log.open(tmp_path / "store", seeded_identity(1))
    try:
        async with running(log, Counter) as runtime:
            await log.append(steps("completed"))
            await runtime.command("counter", command("a"))
            year_ms = 365 * 24 * 3_600_000
            request = PruneRequest(older_than_ms=1)
            plan = await plan_prune(log, (), request, now_ms=1_700_000_000_000 + year_ms)
            assert set(plan.offsets) == {"ses_1"}
    finally:
        await log.close()


POLICY = """
class Once:
    def max_attempts(self, effect): return 1
    def backoff_seconds(self, *, effect, attempt): return 0.0
    def idempotency_key(self, *, run, node, effect): return f"{run}:{node}"
    def deadline_seconds(self, effect): return 1.0

half = object()
"""


@pytest.mark.parametrize(("spec", "is_used"), [("policy.py:Once", True), ("policy.py:half", False), ("no:one", False)])
def test_the_policy_of_the_configuration_is_used_or_listed(tmp_path: Path, spec: str, is_used: bool) -> None:
    (tmp_path / "policy.py").write_text(POLICY)
    worker = Worker(
        Home(tmp_path), WorkerConfig(policy=spec), MemoryStore(), seeded_identity(1), clean=lambda value: value
    )
    used = worker.runtime.effects._policy
    assert (used is not DEFAULT_POLICY) == is_used
    assert [problem["spec"] for problem in worker.problems] == ([] if is_used else [spec])
