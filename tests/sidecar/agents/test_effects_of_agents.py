"""Effects as agents see them: requested in a batch, executed, and their results handed back exactly once."""

from __future__ import annotations

from typing import Any

from sidecar.agents.inputs import agent_stream
from streams.store import Record, StreamStore
from tests.sidecar.agents.agents import Counter
from tests.sidecar.agents.kinds import Policy, Work, never_ends
from tests.sidecar.agents.support import command, records, running, settled, state, types, until


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


async def test_an_unsafe_effect_that_was_cut_off_is_shown_and_told_to_its_agent(open_store: Any) -> None:
    store = await open_store()
    kind = Work(never_ends, effect_class="unsafe")
    async with running(store, Counter, kinds={"work": kind}) as runtime:
        await runtime.command("counter", command("a", "call", kind="work"))
        await until(lambda: len(kind.keys) == 1)
    for _ in range(2):
        async with running(store, Counter, kinds={"work": kind}) as runtime:
            await settled(runtime, store)
            (row,) = runtime.status()
            assert (row["in_doubt"], row["effects"]) == (1, 1)
            assert [one["type"] for one in state(runtime)["results"]] == ["effect.in_doubt"]
    async with running(store, Counter, kinds={"work": kind}) as runtime:
        await settled(runtime, store)
        (effect,) = runtime.view.effects.values()
        (record,) = [r async for r in store.read(effect.stream, from_offset=effect.offset) if r.offset == effect.offset]
        assert await runtime.effects.resolve(record, "done")
        await settled(runtime, store)
        assert state(runtime)["results"][-1] == {"type": "effect.completed", "result": None}
        assert runtime.status()[0]["in_doubt"] == 0
    assert len(kind.keys) == 1
    await store.close()


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
