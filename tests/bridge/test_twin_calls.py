"""Two parallel calls with one id, reported by two plugin copies in every order: two steps, once each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, permutations

import pytest

from bridge.opencode.capture.translate import Origin, Token
from bridge.opencode.link.frames import HookItem
from tests.bridge.opencode.playing import Item, Player, recording

BOOT = "b" * 64
RECORDED = recording("repeated_ids_parallel")


def replaced(item: HookItem, *changes: tuple[str, str]) -> HookItem:
    told = json.dumps([item.input, item.output])
    for old, new in changes:
        told = told.replace(old, new)
    return HookItem(item.hook, item.t, *json.loads(told))


def _is_tool(item: HookItem) -> bool:
    return item.hook == "tool.execute.after" or '"status": "completed"' in json.dumps(item.input)


BEGINNING = [item for _, item in RECORDED[: next(n for n, (_, one) in enumerate(RECORDED) if _is_tool(one))]]
AFTER_ONE, PART_ONE, AFTER_TWO = (item for _, item in RECORDED if _is_tool(item))
PART_TWO = replaced(PART_ONE, ("echo one", "echo two"), ("one\\n", "two\\n"))
IDS = ["same", ""]
"""Some local model servers give no ids."""


def orders() -> Iterator[tuple[HookItem, ...]]:
    """The orders in which one copy reports two calls; the part ends after the hook of the first result."""
    for part, after in ((PART_ONE, AFTER_ONE), (PART_TWO, AFTER_TWO)):
        for order in permutations((AFTER_ONE, AFTER_TWO, part)):
            if order.index(after) < order.index(part):
                yield order


def interleaved(length: int) -> Iterator[list[int]]:
    """Every interleaving of two copies' reports."""
    for first in combinations(range(2 * length), length):
        yield [0 if place in first else 1 for place in range(2 * length)]


def told(order: tuple[HookItem, ...], turns: list[int], call: str = "same") -> list[Item]:
    """The beginning, then the order as both copies report it, with this id of the calls."""
    named = ('"callID": "same"', f'"callID": "{call}"')
    origins = [Origin(BOOT, str(copy) * 16) for copy in (0, 1)]
    items: list[Item] = []
    seqs = [0, 0]
    for copy, item in [(copy, replaced(item, named)) for item in BEGINNING for copy in (0, 1)]:
        seqs[copy] += 1
        items.append((Token(origins[copy], seqs[copy]), item))
    waiting = [[replaced(item, named) for item in order] for _ in origins]
    for copy in turns:
        seqs[copy] += 1
        items.append((Token(origins[copy], seqs[copy]), waiting[copy].pop(0)))
    return items


def commands(player: Player) -> list[str]:
    steps = [event.payload for event in player.of("execution.step") if event.payload["kind"] == "tool"]
    assert not [step for step in steps if "executed_input" in step]
    return sorted(step["input"]["command"] for step in steps)


@pytest.mark.parametrize("call", IDS)
@pytest.mark.parametrize("order", list(orders()))
def test_twins_are_two_steps_in_every_order_also_when_the_sidecar_dies_between(
    order: tuple[HookItem, ...], call: str
) -> None:
    for turns in interleaved(len(order)):
        items = told(order, turns, call)
        for cut in range(len(items) - len(turns), len(items) + 1):
            player = Player()
            player.feed(items[:cut])
            player.crash()
            player.feed([item for item in items if item[0] not in player.finished])
            player.wait()
            assert commands(player) == ["echo one", "echo two"], (turns, cut)
            assert player.finished == {token for token, _ in items}, (turns, cut)


@pytest.mark.parametrize("call", IDS)
@pytest.mark.parametrize("order", list(orders()))
def test_neither_twin_is_lost_when_each_hook_waits_too_long(order: tuple[HookItem, ...], call: str) -> None:
    """The part's end then comes after its hook was recorded alone: a duplicate is better than a loss."""
    player = Player()
    for item in told(order, [0, 0, 0], call):
        player.feed([item])
        player.wait(3.0)
    assert set(commands(player)) == {"echo one", "echo two"}


@pytest.mark.parametrize("call", IDS)
def test_twins_of_two_turns_are_four_steps(call: str) -> None:
    """Also if both turns call the same; a plugin's second copy, which is late with all of it, adds none."""
    named = ('"callID": "same"', f'"callID": "{call}"')
    first = [replaced(item, named) for _, item in RECORDED]
    ids = [(f'"{kind}', f'"{kind}f') for kind in ("msg_", "prt_", "evt_")]  # ids ascend
    second = [replaced(replace(item, t=item.t + 10**6), *ids) for item in first[1:]]
    player = Player()
    for instance in ("0" * 16, "1" * 16):
        player.feed([(Token(Origin(BOOT, instance), seq), item) for seq, item in enumerate(first + second, 1)])
        player.wait()
    assert commands(player) == ["echo one", "echo one", "echo two", "echo two"]
    assert [event.payload["steps"] for event in player.of("turn.ended")] == [4, 4]
    tools = [event.payload for event in player.of("execution.step") if event.payload["kind"] == "tool"]
    assert len({step["part"] for step in tools if "part" in step}) == 2


def test_an_input_that_a_plugin_changed_is_the_step_s_executed_input() -> None:
    changed = HookItem(
        AFTER_ONE.hook, AFTER_ONE.t, json.loads(json.dumps(AFTER_ONE.input).replace("echo one", "echo 1")), {}
    )
    for turns in interleaved(2):
        player = Player()
        player.feed(told((changed, PART_ONE), turns))
        player.wait()
        [step] = [event.payload for event in player.of("execution.step") if event.payload["kind"] == "tool"]
        assert (step["input"]["command"], step["executed_input"]["command"]) == ("echo one", "echo 1")


def test_an_ask_is_joined_with_its_step_by_the_call_within_its_turn() -> None:
    """Two turns of a session ask about calls of one id."""
    first = recording("permission_once")
    told = json.dumps([[item.hook, item.t, item.input, item.output] for _, item in first[1:]])
    for kind in ("msg_", "prt_", "per_", "evt_"):
        told = told.replace(f'"{kind}', f'"{kind}f')  # ids ascend
    second = [HookItem(hook, t + 10**6, *rest) for hook, t, *rest in json.loads(told)]
    player = Player()
    player.feed(first)
    player.feed([(Token(Origin(BOOT, "1" * 16), seq), item) for seq, item in enumerate(second, 1)])
    player.wait()
    steps = [e.payload for e in player.of("execution.step") if e.payload["kind"] == "tool"]
    asks = [e for e in player.of("workflow.checkpoint") if e.payload["state"] == "asked"]
    assert len(asks) == len({ask.payload["turn"] for ask in asks}) == 2 and len({a.payload["call"] for a in asks}) == 1
    joined = [
        [step["part"] for step in steps if (step["turn"], step["call"]) == (a.payload["turn"], a.payload["call"])]
        for a in asks
    ]
    assert joined == [[step["part"]] for step in steps] and len(steps) == 2
    answers = [e.causation_id for e in player.of("workflow.checkpoint") if e.payload["state"] == "replied"]
    assert answers == [ask.id for ask in asks]
