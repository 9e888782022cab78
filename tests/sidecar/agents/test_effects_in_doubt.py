"""Effects whose attempt has no known end, and effects as agents see them: results handed back exactly once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sidecar.agents.effects.policy import Effect
from sidecar.agents.effects.runner import Reconciled
from sidecar.agents.inputs import agent_stream, effects_stream
from streams.store import Record, StreamStore
from tests.sidecar.agents.agents import Counter
from tests.sidecar.agents.bench import Bench
from tests.sidecar.agents.kinds import AGENT, Crash, Policy, Work, never_ends, request
from tests.sidecar.agents.support import command, records, running, settled, state, types, until


async def cut_off(bench: Bench, kind: Work) -> Record:
    """A request whose attempt was cut off by a crash."""
    asked = await request(bench.store, bench.identity)
    await bench.crash(kind, asked)
    return asked


class TestInDoubt:
    @pytest.mark.parametrize("effect_class", ["safe", "idempotent"])
    async def test_what_can_be_repeated_is_repeated_with_the_same_key(self, bench: Bench, effect_class: Any) -> None:
        kind = Work(effect_class=effect_class)
        asked = await request(bench.store, bench.identity)
        await bench.crash(kind, asked, at="effect-done")
        await bench.run(bench.runner(kind), asked)
        assert kind.keys == ["key-1", "key-1"]
        assert (await bench.last()).attempt == 2

    async def test_what_is_unsafe_and_cannot_be_asked_waits_for_a_person(self, bench: Bench) -> None:
        kind = Work(effect_class="unsafe")
        asked = await cut_off(bench, kind)
        for _ in range(3):
            await bench.run(bench.runner(kind), asked)
        assert kind.keys == []
        assert await bench.steps() == [("started", 1), ("in_doubt", 1)]
        assert kind.asked == 3, "the kind is asked again at every start"

    async def test_done_is_recorded_as_the_result(self, bench: Bench) -> None:
        kind = Work(effect_class="unsafe", found=Reconciled(True, {"id": 9}))
        asked = await cut_off(bench, kind)
        await bench.run(bench.runner(kind), asked)
        assert kind.keys == []
        assert await bench.answers() == {asked.event.id: [("completed", {"id": 9})]}

    async def test_not_done_is_tried_again(self, bench: Bench) -> None:
        kind = Work(effect_class="unsafe", found=Reconciled(False))
        asked = await cut_off(bench, kind)
        await bench.run(bench.runner(kind), asked)
        assert await bench.steps() == [("started", 1), ("failed", 1), ("started", 2), ("completed", 2)]

    @pytest.mark.parametrize("found", [Reconciled(None, reason="asked in vain"), ZeroDivisionError()])
    async def test_without_an_answer_it_stays_in_doubt(self, bench: Bench, found: Any) -> None:
        kind = Work(effect_class="unsafe", found=found)
        asked = await cut_off(bench, kind)
        await bench.run(bench.runner(kind), asked)
        assert (await bench.last()).status == "in_doubt"
        kind.found = Reconciled(True, "at last")
        await bench.run(bench.runner(kind), asked)
        assert await bench.answers() == {asked.event.id: [("completed", "at last")]}

    async def test_asking_has_a_deadline(self, bench: Bench) -> None:
        class Deaf(Work):
            async def reconcile(self, effect: Effect, key: str) -> Any:
                await never_ends()

        kind = Deaf(effect_class="unsafe")
        asked = await cut_off(bench, kind)
        await bench.run(bench.runner(kind, Policy(deadline=0.01)), asked)
        assert (await bench.last()).status == "in_doubt"

    async def test_an_unsafe_effect_beyond_its_deadline_is_in_doubt(self, bench: Bench) -> None:
        kind = Work(never_ends, effect_class="unsafe")
        asked = await request(bench.store, bench.identity)
        await bench.run(bench.runner(kind, Policy(deadline=0.01)), asked)
        assert await bench.steps() == [("started", 1), ("in_doubt", 1)]

    async def test_a_runner_that_closes_leaves_its_attempt_in_doubt(self, bench: Bench) -> None:
        kind = Work(never_ends, effect_class="unsafe")
        asked = await request(bench.store, bench.identity)
        runner = bench.runner(kind)
        runner.offer(asked)
        while not kind.keys:
            await asyncio.sleep(0.001)
        await runner.close()
        await bench.run(bench.runner(kind), asked)
        assert await bench.steps() == [("started", 1), ("in_doubt", 1)]

    async def test_a_kind_that_is_not_configured_any_more_leaves_it_in_doubt(self, bench: Bench) -> None:
        kind = Work(effect_class="unsafe")
        asked = await cut_off(bench, kind)
        await bench.run(bench.runner(None), asked)
        assert (await bench.last()).status == "in_doubt"
        assert await bench.answers() == {}

    async def test_a_person_may_want_more_attempts_than_the_policy(self, bench: Bench) -> None:
        kind = Work(effect_class="unsafe")
        asked = await cut_off(bench, kind)
        runner = bench.runner(kind, Policy(attempts=1))
        await bench.run(runner, asked)
        assert await runner.resolve(asked, "retry")
        await bench.run(runner)
        assert await bench.answers() == {asked.event.id: [("completed", {"n": 1})]}

    async def test_a_decision_is_about_one_attempt_and_is_made_once(self, bench: Bench) -> None:
        kind = Work(never_ends, effect_class="unsafe")
        asked = await cut_off(bench, kind)
        runner = bench.runner(kind, Policy(deadline=0.01))
        await bench.run(runner, asked)
        assert await runner.resolve(asked, "retry", attempt=1, mark="first")
        await bench.run(runner)
        assert await bench.steps() == [
            ("started", 1),
            ("in_doubt", 1),
            ("failed", 1),
            ("started", 2),
            ("in_doubt", 2),
        ]
        assert await runner.resolve(asked, "retry", attempt=1, mark="first"), "it was carried out"
        assert not await runner.resolve(asked, "done", attempt=1, mark="late"), "nobody was asked about this attempt"
        assert not await runner.resolve(asked, "done", attempt=1)
        assert (await bench.last()).status == "in_doubt" and len(kind.keys) == 1
        assert await runner.resolve(asked, "done", attempt=2, mark="second")

    async def test_a_doubt_says_all_of_the_effect(self, bench: Bench) -> None:
        asked = await cut_off(bench, kind := Work(effect_class="unsafe"))
        await bench.run(bench.runner(kind), asked)
        told = (await records(bench.store, effects_stream(AGENT)))[-1].event.payload
        assert told["args"] == asked.event.payload["args"] and told["kind"] == "work" and told["reason"]

    async def test_a_crash_while_it_is_given_up_leaves_it_in_doubt(self, bench: Bench) -> None:
        """And no request of the same key is tried again."""
        kind = Work(effect_class="unsafe")
        asked = [await request(bench.store, bench.identity, n=n, key="same") for n in range(3)]
        await bench.crash(kind, asked[0])
        runner = bench.runner(kind)
        await bench.run(runner, *asked)
        append, left = bench.store.append, 2

        async def dies(events: Any, **more: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise Crash
            return await append(events, **more)

        bench.store.append = dies  # type: ignore[method-assign]
        with pytest.raises(Crash):
            await runner.resolve(asked[0], "fail", mark="one")
        bench.store.append = append  # type: ignore[method-assign]
        open_ = [one for one in asked if one.event.id not in await bench.answers()]
        assert asked[0] in open_ and len(open_) == 2
        runner = bench.runner(kind)
        await bench.run(runner, *open_)
        assert (await bench.last("same")).status == "in_doubt"
        assert await runner.resolve(asked[0], "fail", mark="one")
        await bench.run(runner)
        assert await bench.answers() == {one.event.id: [("failed", "given-up")] for one in asked} and kind.keys == []

    @pytest.mark.parametrize("how", ["done", "retry", "fail"])
    async def test_a_resolution_answers_every_request_with_the_key(self, bench: Bench, how: Any) -> None:
        kind = Work(effect_class="unsafe")
        asked = [await request(bench.store, bench.identity, n=n, key="same") for n in range(3)]
        await bench.crash(kind, asked[0])
        runner = bench.runner(kind)
        await bench.run(runner, *asked)
        doubts = [r.event.payload["request"] for r in await records(bench.store, effects_stream(AGENT))][1:]
        assert doubts == [one.event.id for one in asked], "each of them shows that it waits"
        assert await runner.resolve(asked[1], how)
        await bench.run(runner)
        assert not await runner.resolve(asked[1], how), "it is not in doubt any more"
        assert len(kind.keys) == (how == "retry")
        assert {id_: len(found) for id_, found in (await bench.answers()).items()} == {r.event.id: 1 for r in asked}


class Looper(Counter):
    """Repeats one call: each result asks for the next."""

    name = "looper"
    visits = 100

    def receive(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        again = {"effect": "work", "payload": {"same": True}, "node": "loop"}
        if event["type"] == "begin":
            return [again]
        if event["type"] == "effect.completed":
            done = {"type": "counter.added", "payload": {"by": 1, "result": event["payload"]["result"]["n"]}}
            return [done] if self.total + 1 >= self.visits else [done, again]
        return []


async def test_a_result_comes_back_as_one_input_across_restarts(open_store: Any) -> None:
    kinds = {"work": Work(OSError("down"), {"ok": 1})}
    for restart in range(4):
        store = await open_store()
        async with running(store, Counter, kinds=kinds, policy=Policy()) as runtime:
            await runtime.command("counter", command("a", "call", kind="work"))
            await settled(runtime, store)
            assert state(runtime)["results"] == [{"type": "effect.completed", "result": {"ok": 1}}], restart
            received = [one for one in await types(store) if one == "agent.received"]
            assert len(received) == 1, "failures that are not final reach nobody"
        await store.close()
    assert len(kinds["work"].keys) == 2


async def test_a_loop_gets_a_new_result_at_every_visit_with_few_lookups(store: StreamStore) -> None:
    kind = Work()
    visits = 200
    make = type("Looper", (Looper,), {"visits": visits})
    finds = 0
    plain = store.find

    async def counted(key: str) -> Record | None:
        nonlocal finds
        finds += 1
        return await plain(key)

    store.find = counted  # type: ignore[method-assign]
    async with running(store, make, kinds={"work": kind}, max_depth=10_000) as runtime:
        await runtime.command("looper", command("a", "begin"))
        await until(lambda: state(runtime, "looper")["total"] == visits)
    own = [r.event.payload for r in await records(store, agent_stream("looper"))]
    assert [payload["result"] for payload in own if "result" in payload] == list(range(1, visits + 1))
    assert len(set(kind.keys)) == visits
    assert finds / visits < 30, f"{finds} lookups"


async def test_two_agents_that_ask_for_the_same_each_get_it_done(store: StreamStore) -> None:
    class Twin(Counter):
        name = "twin"

    kind = Work()
    async with running(store, Counter, Twin, kinds={"work": kind}) as runtime:
        for name in ("counter", "twin"):
            given = command("a", "call", kind="work")
            object.__setattr__(given, "correlation_id", "one-run")
            await runtime.command(name, given)
        await settled(runtime, store)
    assert len(set(kind.keys)) == 2


async def test_an_agent_gets_the_results_of_others_only_if_it_lists_them(store: StreamStore) -> None:
    class Nosy(Counter):
        name = "nosy"
        events = ("effect.completed",)

    class Quiet(Counter):
        name = "quiet"

    kinds = {"work": Work(), "fails": Work(PermissionError("no"))}
    async with running(store, Counter, Nosy, Quiet, kinds=kinds, policy=Policy(attempts=1)) as runtime:
        for kind in kinds:
            await runtime.command("counter", command(kind, "call", kind=kind))
        await settled(runtime, store)
        got = {name: [one["type"] for one in state(runtime, name)["results"]] for name in runtime.engines}
    assert sorted(got["counter"]) == ["effect.completed", "effect.failed"]
    assert got["nosy"] == ["effect.completed"] and got["quiet"] == []


async def test_a_host_overrides_the_policy_by_the_constructor(store: StreamStore) -> None:
    kind = Work()
    async with running(store, Counter, kinds={"work": kind}, policy=Policy(key="mine")) as runtime:
        for key in ("a", "b"):
            given = command(key, "call", kind="work")
            object.__setattr__(given, "correlation_id", "one-run")
            await runtime.command("counter", given)
        await settled(runtime, store)
        assert [one["result"] for one in state(runtime)["results"]] == [{"n": 1}, {"n": 1}]
    assert kind.keys == ["mine"]


async def test_an_effect_that_waited_for_a_retry_goes_on_after_a_restart(open_store: Any) -> None:
    store = await open_store()
    kind = Work(OSError("down"))
    async with running(store, Counter, kinds={"work": kind}, policy=Policy(pause=0.2)) as runtime:
        await runtime.command("counter", command("a", "call", kind="work"))
        await until(lambda: len(kind.keys) == 1)
    async with running(store, Counter, kinds={"work": kind}, policy=Policy(pause=0.2)) as runtime:
        assert runtime.owes()
        await settled(runtime, store)
        assert [one["type"] for one in state(runtime)["results"]] == ["effect.completed"]
    assert len(kind.keys) == 2
    await store.close()
