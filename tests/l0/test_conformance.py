"""The L0 protocol, section by section, against an implementation that is seen over NATS alone.

``peer.heard`` checks every message of the implementation: its subject (1), its headers (3), its required fields (5).
"""

from __future__ import annotations

import asyncio
import json
import secrets
from typing import Any

import pytest
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from tests.l0.peer import COMMANDS, EVENTS, HANG_S, HEADERS, REQUIRED, SUBJECT, Heard, Peer, fetched, heard

ALONE = ["state running", "task success", "state idle"]
WITH_STEP = ["state running", "step completed", "task success", "state idle"]
UI = "cg.v1.shop.public.cmd.sys.ui.action"
HOUR_S = 3600


async def code_of(peer: Peer, trace: str) -> str | None:
    return (await peer.until(trace, "task failed")).body.get("error_code")


# --- 2: transport ---


async def test_the_streams_keep_commands_for_a_day_and_events_for_a_week(peer: Peer) -> None:
    for name, pattern, hours, retention in (
        (COMMANDS, "cg.v1.*.*.cmd.>", 24, "workqueue"),
        (EVENTS, "cg.v1.*.*.evt.>", 168, "limits"),
    ):
        config = (await peer.js.stream_info(name)).config
        assert (config.subjects, config.max_age, config.retention) == ([pattern], hours * HOUR_S, retention)


async def test_pieces_of_an_answer_are_heard_without_headers_and_kept_nowhere(peer: Peer) -> None:
    pieces: asyncio.Queue[Any] = asyncio.Queue()
    await peer.client.subscribe("cg.v1.*.*.str.>", cb=pieces.put)
    await peer.client.flush()
    await peer.under.stream()
    async with asyncio.timeout(HANG_S):
        piece = await pieces.get()
    assert SUBJECT.fullmatch(piece.subject) and not piece.headers
    assert REQUIRED["chunk"] <= json.loads(piece.data).keys()
    for stream in await peer.js.streams_info():
        assert not await peer.left(str(stream.config.name), "cg.*.*.*.str.>")


async def test_each_durable_gets_every_event_and_those_who_share_one_compete(peer: Peer) -> None:
    config = {"ack_policy": AckPolicy.EXPLICIT, "deliver_policy": DeliverPolicy.NEW}
    first, again, other = [
        await peer.js.pull_subscribe("cg.v1.*.*.evt.agent.>", name, stream=EVENTS, config=ConsumerConfig(**config))
        for name in ("observer", "observer", "auditor")
    ]
    traces = [await peer.order("rest") for _ in range(5)]
    wanted = [
        each.message.metadata.sequence.stream for trace in traces if await peer.ended(trace) for each in peer.of(trace)
    ]

    async def all_of(*pulls: Any) -> list[int]:
        found: set[int] = set()  # a slow acknowledgement brings a message again
        async with asyncio.timeout(HANG_S):
            while len(found) < len(wanted):
                for pull in pulls:
                    for message in await fetched(pull, 3):
                        await message.ack()
                        found.add(message.metadata.sequence.stream)
        return sorted(found)

    assert await all_of(first, again) == await all_of(other) == sorted(wanted)


# --- 3: trace ---


async def test_a_trace_goes_on_and_a_missing_one_is_made(peer: Peer) -> None:
    kept = {"tracestate": "vendor=1", "CG-User-ID": "ada", "CG-Channel-ID": "public", "CG-Context-ID": "box_1"}
    trace = await peer.order("call", args={}, headers=kept)
    call = await peer.call(trace)
    assert {name: call.headers.get(name) for name in kept} == kept
    await peer.report(call)
    assert await peer.ended(trace) == WITH_STEP
    for event in peer.of(trace):
        assert {name: event.headers.get(name) for name in kept} == kept, event
    key = secrets.token_hex(8)
    await peer.order("rest", key=key, correlation_id=key, headers={"traceparent": None})
    async with asyncio.timeout(HANG_S):
        while not (made := [event for event in peer.events if event.body["agent_turn_id"] == key]):
            await asyncio.sleep(0.01)
    assert await peer.ended(made[0].trace) == ALONE


async def test_an_order_for_another_agent_is_one_deeper_in_the_same_trace_and_a_wakeup_announces_it(
    peer: Peer,
) -> None:
    stream, subject = peer.under.orders_for("far")
    orders = await peer.js.pull_subscribe(subject, "far", stream=stream)
    bells = await peer.js.pull_subscribe("cg.v1.*.*.cmd.agent.far.wakeup", "far_bell", stream=COMMANDS)
    trace = await peer.order("tell", headers={"CG-Recursion-Depth": "3", "tracestate": "vendor=1", "CG-User-ID": "ada"})
    (order,), (bell,) = await orders.fetch(timeout=HANG_S), await bells.fetch(timeout=HANG_S)
    rung = heard(bell)
    assert (rung.trace, rung.body["agent_id"]) == (trace, "far") and not rung.body.keys() & {"payload", "args"}
    given = order.headers or {}
    assert given["traceparent"].split("-")[1] == trace and all(given[name] for name in HEADERS)
    assert (given["CG-Recursion-Depth"], given["tracestate"], given["CG-User-ID"]) == ("4", "vendor=1", "ada")
    assert order.subject.split(".")[1] == "shop"
    assert await peer.ended(trace) == ALONE  # the order is a turn of the other agent's
    assert len({event.body["agent_turn_id"] for event in peer.of(trace)}) == 1


# --- 3: depth ---


async def test_a_call_has_a_depth_and_its_report_must_have_the_same(peer: Peer) -> None:
    trace = await peer.order("call", args={})
    call = await peer.call(trace)
    for wrong in ("9", "-1", "one", None):
        await peer.report(call, "failed", headers={"CG-Recursion-Depth": wrong})
    await peer.settled()
    await peer.report(call)
    assert await peer.ended(trace) == WITH_STEP


@pytest.mark.parametrize(
    ("depth", "mode"),
    [("-1", "call"), ("one", "call"), ("1.5", "call"), ("", "call"), ("1", "transfer"), ("1", "notify")],
)
async def test_another_depth_than_a_number_and_another_mode_than_call_are_violations(
    peer: Peer, depth: str, mode: str
) -> None:
    trace = await peer.order("rest", mode=mode, headers={"CG-Recursion-Depth": depth})
    assert await code_of(peer, trace) == "protocol_violation"


async def test_a_chain_has_one_depth_and_gives_it_to_a_message_without(peer: Peer) -> None:
    chain = secrets.token_hex(8)
    first = await peer.order("rest", correlation_id=chain, headers={"CG-Recursion-Depth": "7"})
    assert await peer.ended(first) == ALONE
    assert await code_of(peer, await peer.order("rest", correlation_id=chain, headers={"CG-Recursion-Depth": "8"})) == (
        "protocol_violation"
    )
    filled = await peer.order("rest", correlation_id=chain)
    assert await peer.ended(filled) == ALONE
    depths = {event.headers["CG-Recursion-Depth"] for event in peer.of(first) + peer.of(filled)}
    assert depths <= {"7", "8"}


async def test_at_the_limit_the_chain_ends(peer: Peer) -> None:
    limit = peer.under.max_depth
    for depth in (limit, limit + 5):
        trace = await peer.order("rest", headers={"CG-Recursion-Depth": str(depth)})
        assert await code_of(peer, trace) == "recursion_depth_exceeded"
    trace = await peer.order("call", args={}, headers={"CG-Recursion-Depth": str(limit - 1)})  # the sender refuses
    assert await code_of(peer, trace) == "recursion_depth_exceeded"
    assert not await peer.left(COMMANDS, f"cg.v1.*.*.{peer.under.tool}")


async def test_reserved_keys_in_a_payload_are_no_reason_to_refuse(peer: Peer) -> None:
    assert await peer.ended(await peer.order("rest", **{"CG-Recursion-Depth": 99})) == ALONE


# --- 4: once ---


async def test_an_order_that_comes_again_is_done_once(peer: Peer) -> None:
    key = secrets.token_hex(8)
    traces = [await peer.order("rest", key=key) for _ in range(3)]
    assert await peer.ended(await peer.order("rest")) == ALONE  # what came before was handled, too
    await peer.settled()
    assert await peer.ended(await peer.order("rest")) == ALONE
    assert [peer.of(trace) != [] for trace in traces].count(True) == 1


async def test_a_report_that_comes_again_counts_once(peer: Peer) -> None:
    trace = await peer.order("call", args={})
    call = await peer.call(trace)
    for status in ("success", "success", "failed", "partial"):
        await peer.report(call, status)
    await peer.settled()
    assert await peer.ended(await peer.order("rest")) == ALONE
    assert await peer.ended(trace) == WITH_STEP


@pytest.mark.parametrize("wrong", [{"turn_epoch": 10**6}, {"agent_turn_id": "another"}, {"tool_call_id": "another"}])
async def test_a_report_of_another_epoch_turn_or_call_changes_nothing(peer: Peer, wrong: dict[str, Any]) -> None:
    trace = await peer.order("call", args={})
    call = await peer.call(trace)
    await peer.report(call, "failed", **wrong)
    await peer.settled()
    await peer.report(call)
    assert await peer.ended(trace) == WITH_STEP


# --- 5.1: wakeup ---


async def test_a_wakeup_may_be_lost_doubled_late_or_nonsense(peer: Peer) -> None:
    bell = f"cg.v1.shop.public.cmd.agent.{peer.under.agent}.wakeup"
    assert await peer.ended(await peer.order("rest")) == ALONE  # none was sent
    for body in ({"agent_id": peer.under.agent, "inbox_id": "gone", "reason": "late"}, {"agent_id": 1}, b"\xff"):
        await peer.publish(bell, body)
        await peer.publish(bell, body)
    trace = await peer.order("rest")
    assert await peer.ended(trace) == ALONE
    await peer.settled()
    assert len(peer.of(trace)) == len(ALONE)


# --- 5.2: reports ---


@pytest.mark.parametrize("status", ["failed", "canceled", "timeout"])
async def test_these_statuses_end_the_call_as_failed(peer: Peer, status: str) -> None:
    trace = await peer.order("call", args={})
    await peer.report(await peer.call(trace), status, error="as asked")
    assert await peer.ended(trace) == ["state running", "step failed", "task failed", "state idle"]


async def test_a_partial_report_leaves_the_call_open(peer: Peer) -> None:
    trace = await peer.order("call", args={})
    call = await peer.call(trace)
    for half in range(2):
        await peer.report(call, "partial", result={"half": half})
    await peer.settled()
    await peer.report(call)
    assert await peer.ended(trace) == WITH_STEP


@pytest.mark.parametrize(
    "wrong",
    [
        *(
            {name: ...}
            for name in ("agent_turn_id", "turn_epoch", "agent_id", "after_execution", "tool_result_card_id")
        ),
        {"status": "perhaps"},
        {"after_execution": "go on"},
        {"result_": {"words": 2}},
    ],
)
async def test_a_report_without_a_field_or_with_the_result_itself_is_a_dead_letter(
    peer: Peer, wrong: dict[str, Any]
) -> None:
    trace, before = await peer.order("call", args={}), await peer.dead_letters()
    call = await peer.call(trace)
    if "result_" in wrong:
        body = {name: call.body[name] for name in ("tool_call_id", "agent_turn_id", "turn_epoch", "agent_id")}
        body |= {"status": "success", "after_execution": "suspend", "tool_result_card_id": "card", "result": {}}
        await peer.publish(peer.under.inbox("tool_result"), body, call.headers)
    else:
        await peer.report(call, **wrong)
    await peer.settled()
    assert await peer.dead_letters() == before + 1
    await peer.report(call)
    assert await peer.ended(trace) == WITH_STEP


# --- 5.3: stop ---


async def test_a_stop_ends_the_turn_of_its_epoch(peer: Peer) -> None:
    trace = await peer.order("call", args={}, headers={"CG-Recursion-Depth": "5"})
    call = await peer.call(trace)
    await peer.until(trace, "state running")  # calls and events come on two ways
    await peer.stop(call, turn_epoch=10**6)
    await peer.stop(call, agent_turn_id="another")
    await peer.settled()
    assert [event.says for event in peer.of(trace)] == ["state running"]
    await peer.stop(call)
    await peer.stop(call)
    assert await peer.ended(trace) == ["state running", "task canceled", "state idle"]
    assert {event.headers["CG-Recursion-Depth"] for event in peer.of(trace)} == {"5"}
    await peer.report(call)
    await peer.settled()
    assert await peer.ended(await peer.order("rest")) == ALONE
    assert len(peer.of(trace)) == 3


# --- 5.4 to 5.9: calls, and what is said of their turn ---


async def test_a_call_points_at_its_arguments_and_comes_again_until_it_is_acknowledged(peer: Peer) -> None:
    trace = await peer.order("call", args={"text": "two words"})
    call, again = await peer.call(trace, ack=False), await peer.call(trace)
    assert call.body == again.body and call.headers == again.headers
    assert not call.body.keys() & {"args", "text"} and call.body["agent_id"] == peer.under.agent
    assert await peer.under.get(peer.js, call.body["tool_call_card_id"]) == {"text": "two words"}
    state = await peer.until(trace, "state running")
    assert call.body["agent_turn_id"] == state.body["agent_turn_id"]
    assert call.body["turn_epoch"] == state.body["turn_epoch"]
    await peer.report(again)
    assert await peer.ended(trace) == WITH_STEP
    edges = peer.of(trace)
    assert {edge.subject.split(".")[6] for edge in edges} == {peer.under.agent}
    assert {edge.body["agent_turn_id"] for edge in edges} == {call.body["agent_turn_id"]}
    states = [edge.body for edge in edges if edge.kind == "state"]
    assert {(each["agent_id"], each["turn_epoch"]) for each in states} == {(peer.under.agent, call.body["turn_epoch"])}


async def test_workers_with_one_durable_share_the_calls(peer: Peer) -> None:
    traces = [await peer.order("call", args={"n": n}) for n in range(8)]
    workers = [await peer.worker() for _ in range(2)]
    taken: dict[str, Heard] = {}  # a slow acknowledgement brings a call again
    async with asyncio.timeout(HANG_S):
        while len(taken) < len(traces):
            for worker in workers:
                for message in await fetched(worker, 2):
                    await message.ack()
                    call = heard(message, "call")
                    taken[call.body["tool_call_id"]] = call
    assert sorted(call.trace for call in taken.values()) == sorted(traces)
    for call in taken.values():
        await peer.report(call)
        assert await peer.ended(call.trace) == WITH_STEP


async def test_an_internal_tool_is_carried_out_by_the_implementation(peer: Peer) -> None:
    assert await peer.ended(await peer.order("internal", args=peer.under.internal_args)) == WITH_STEP


async def test_a_call_of_an_internal_tool_that_is_not_allowed_is_answered(peer: Peer) -> None:
    stream, subject = peer.under.orders_for("stranger")
    inbox = await peer.js.pull_subscribe(subject, "stranger", stream=stream)
    about = {"tool_call_id": secrets.token_hex(8), "agent_turn_id": "turn", "turn_epoch": 0, "agent_id": "stranger"}
    card = await peer.under.put_args(peer.js, {"prompt": "do it"})
    for tool in ("spawn", "delegate"):
        call = {**about, "tool_name": tool, "tool_call_card_id": card}
        await peer.publish(f"cg.v1.shop.public.cmd.sys.pmo.internal.{tool}", call, {"CG-Recursion-Depth": "2"})
        (report,) = await inbox.fetch(timeout=HANG_S)
        await report.ack()
        told = json.loads(report.data)
        assert told | about == told and (told["status"], told["error_code"]) == ("failed", "not-allowed")
        assert (report.headers or {})["CG-Recursion-Depth"] == "2"


# --- 5.10 and 5.11: user interfaces ---


async def acted(peer: Peer, count: int = 1, **fields: Any) -> list[dict[str, Any]]:
    """The answers to an action that is sent ``count`` times."""
    action = {"action_id": secrets.token_hex(8), "agent_id": "ui_worker", "tool_name": peer.under.ui_tool}
    action |= {"args": peer.under.ui_args, **fields}
    for _ in range(count):
        await peer.publish(UI, action)
    async with asyncio.timeout(HANG_S):
        while len(found := [e for e in peer.events if e.body.get("action_id") == action["action_id"]]) < count:
            await asyncio.sleep(0.01)
    assert {each.subject for each in found} == {"cg.v1.shop.public.evt.sys.ui.action_ack"}
    return [each.body for each in found]


async def test_an_action_of_a_user_interface_is_done_once_and_each_message_answered(peer: Peer) -> None:
    uuid7 = "01890a5d-ac96-774b-bcce-b302099a8057"
    before = await peer.under.deeds(peer.js)
    told = await acted(peer, 6, message_id=uuid7)
    assert [(each["status"], each["message_id"]) for each in told] == [("accepted", uuid7)] * 6
    await peer.settled()
    assert await peer.under.deeds(peer.js) == before + 1


@pytest.mark.parametrize("wrong", [{"tool_name": "erase"}, {"agent_id": "clerk"}])
async def test_what_is_not_allowed_is_rejected(peer: Peer, wrong: dict[str, Any]) -> None:
    ((told),) = await acted(peer, **wrong)
    assert told["status"] == "rejected" and told["error_code"]


# --- dead letters ---


async def test_what_cannot_be_read_is_a_dead_letter_and_the_rest_goes_on(peer: Peer) -> None:
    before = await peer.dead_letters()
    subjects = [peer.under.order("rest")[0], UI, f"cg.v1.shop.public.cmd.agent.{peer.under.agent}.wakeup"]
    for subject in [*subjects, f"cg.v1.shop.public.{peer.under.internal_tool}"]:
        await peer.publish(subject, b"\xff not json")
    await peer.settled()
    assert await peer.dead_letters() == before + 4
    assert await peer.ended(await peer.order("rest")) == ALONE
