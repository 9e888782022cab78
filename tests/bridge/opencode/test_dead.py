"""A turn that was ended because its process is gone: whatever comes of it later breaks and doubles nothing."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from bridge.opencode.capture.state import CaptureState
from bridge.opencode.capture.translate import Origin, Token
from streams.event import StreamEvent
from tests.bridge.opencode.playing import Item, Player, names, play, recording
from tests.bridge.opencode.rows import MemoryRows

TURNS = ("turn.started", "turn.ended")


def end_all(player: Player) -> None:
    """What the sidecar does when it finds that nobody runs these turns."""
    for session, _ in player.translator.state.open_turns():
        player.translator.end_dead(session.id, player.now, at_ms=None)
    player.feed([])
    player.log.append(player.translator.drain().events)


def content(events: list[StreamEvent]) -> dict[str, Any]:
    """What was said and done, without the turns' ends and what only they cause."""
    kept = ("human.input", "agent.input", "execution.step", "execution.output", "turn.started", "agent.error")
    return {e.idempotency_key: e.payload for e in events if e.type in kept}


@pytest.mark.parametrize("name", names())
def test_hooks_that_come_after_the_end_are_recorded_once_and_begin_no_turn_again(name: str) -> None:
    items = recording(name)
    wanted = content(list(play(name).log.events.values()))
    for cut in range(1, len(items), 1 + len(items) // 6):
        player = Player()
        player.feed(items[:cut])
        end_all(player)
        player.feed(items[cut:])
        player.wait()
        events = list(player.log.events.values())
        assert content(events).keys() == wanted.keys(), cut
        once = Counter((e.type, e.payload["session"], e.payload["message"]) for e in events if e.type in TURNS)
        assert set(once.values()) <= {1}, cut
        assert len(player.of("turn.ended")) >= len(play(name).of("turn.ended")), cut
        before = list(player.log.events)
        player.crash()
        player.feed(items)
        player.wait()
        assert list(player.log.events) == before, cut


@pytest.mark.parametrize("name", ["chat", "permission_once", "task_child", "tool_chain"])
def test_a_sidecar_that_dies_before_the_end_is_durable_writes_it_at_its_next_start(name: str) -> None:
    items = recording(name)
    cut = len(items) // 2
    player = Player()
    player.feed(items[:cut])
    ends = len(player.of("turn.ended"))
    for session, _ in player.translator.state.open_turns():
        player.translator.end_dead(session.id, player.now, at_ms=None)
    player.crash()  # what it had made is lost
    assert len(player.of("turn.ended")) == ends
    player.feed([item for item in items[:cut] if item[0] not in player.finished])
    end_all(player)
    assert {e.payload["outcome"] for e in player.of("turn.ended")} >= {"interrupted"}
    assert player.log.state().open_turns() == []


def test_a_turn_whose_last_answer_had_come_is_not_interrupted() -> None:
    player, items = Player(), recording("chat")
    player.feed(items[: next(n for n, (_, item) in enumerate(items) if "session.idle" in str(item.input))])
    end_all(player)
    player.feed([])
    assert [e.payload["outcome"] for e in player.of("turn.ended")] == ["completed"]


def test_the_log_knows_the_process_of_a_turn_and_its_last_sign_of_life() -> None:
    origin = Origin("b" * 32, "1" * 16, 4711)
    items: list[Item] = [(Token(origin, token.seq), item) for token, item in recording("permission_once")]
    player = Player()
    player.feed(items[: len(items) // 2])
    started = player.of("turn.started")[0]
    assert started.metadata["pid"] == 4711
    assert [e.type for e in player.log.events.values() if "pid" in e.metadata] == ["turn.started"]
    rest, changes = player.log.state().changes()
    ((_, turn),) = CaptureState.load(rest, MemoryRows(changes)).open_turns()
    assert (turn.pid, turn.last_ms) == (4711, max(e.ts for e in player.log.events.values()))
    end_all(player)
    assert player.of("turn.ended")[0].ts == turn.last_ms


@pytest.mark.parametrize("pid", ["1", None, {}, True, 1.5, 0, -1])
def test_a_pid_of_another_shape_is_unknown(pid: Any) -> None:
    origin = Origin("b" * 32, "1" * 16, pid)
    player = Player()
    player.feed([(Token(origin, token.seq), item) for token, item in recording("permission_once")][:20])
    assert [turn.pid for _, turn in player.log.state().open_turns()] == [None]
