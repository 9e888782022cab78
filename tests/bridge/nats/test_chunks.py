"""Token deltas become few chunks, and nothing is lost or mixed up."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.nats.l0.payloads import MAX_ID
from bridge.nats.mirror import chunks
from bridge.nats.mirror.chunks import Chunks, Delta, Ready
from tests.streams.sizes import size

many = settings(max_examples=size("EXAMPLES", 200), deadline=None, derandomize=True, database=None)


def delta(
    text: str, session: str = "ses_a", step: str = "prt_1", kind: str = "text", turn: str | None = "msg"
) -> Delta:
    return Delta(session, turn, step, kind, text)


def seen(ready: list[Ready]) -> list[tuple[str, str, int | None, str]]:
    return [(each.session, each.chunk.step_id, each.chunk.index, each.chunk.content) for each in ready]


def test_deltas_leave_as_one_and_the_last_word_when_it_is_quiet() -> None:
    made = Chunks(str, hold_s=3.0)
    assert not made.is_waiting
    for text in ("he", "l", "lo wor", "ld"):
        made.add(delta(text), 10.0)
    assert made.is_waiting
    (ready,) = made.due(10.05)
    assert ready.chunk.fields() == {
        "agent_turn_id": "msg",
        "step_id": "prt_1",
        "chunk_type": "text",
        "content": "hello ",
        "index": 0,
    }
    assert made.due(12.9) == [] and made.is_waiting
    assert seen(made.due(13.0)) == [("ses_a", "prt_1", 1, "world")] and not made.is_waiting
    made.add(delta(" again "), 14.0)
    assert seen(made.due(14.0)) == [("ses_a", "prt_1", 2, " again ")]


def test_much_text_leaves_in_pieces_of_whole_characters() -> None:
    made = Chunks(str, hold_s=0, max_bytes=8)
    made.add(delta("12345678ééééé😀😀中x"), 0)
    ready = made.due(0)
    assert [each.chunk.content for each in ready] == ["12345678", "éééé", "é😀", "😀中x"]
    assert [each.chunk.index for each in ready] == [0, 1, 2, 3]
    assert all(len(each.chunk.content.encode()) <= 8 for each in ready)


def test_what_no_payload_can_hold_is_counted() -> None:
    made = Chunks(str)
    for odd in (delta("x", turn=None), delta("x", step=""), delta("x", kind="k" * (MAX_ID + 1)), delta("x", turn="")):
        made.add(odd, 0)
    made.add(delta(""), 0)
    assert made.due(99) == [] and dict(made.counts) == {"no_turn": 1, "bad_id": 3}


def test_a_character_that_was_split_is_whole_again() -> None:
    made = Chunks(str)
    for half in ("a\ud83d", "\ude00b", "\ud83d"):
        made.add(delta(half), 0)
    assert seen(made.due(99)) == [("ses_a", "prt_1", 0, "a😀b�")]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "MAX_OPEN", 3)
    monkeypatch.setattr(chunks, "MAX_STEPS", 4)
    monkeypatch.setattr(chunks, "MAX_WAITING", 9)
    made = Chunks(str)
    for n in range(10):
        made.add(delta("x", session=f"ses_{n}"), n)
    assert [each.session for each in made.due(0)] == [f"ses_{n}" for n in range(7)], "the longest quiet go first"
    for n in range(20):
        made.add(delta("x", step=f"prt_{n}"), 0)
    assert len(made.due(0)) == 9 and made.counts["dropped"] > 0
    assert len(made._numbers) <= 4 and len(made._texts) <= 3


deltas = st.tuples(
    st.sampled_from(["ses_a", "ses_b"]),
    st.sampled_from(["prt_1", "prt_2"]),
    st.sampled_from(["text", "reasoning"]),
    st.text(max_size=12),
    st.floats(0, 0.1),
)


@many
@given(st.lists(deltas, max_size=30), st.integers(4, 20))
def test_nothing_is_lost_doubled_or_mixed_up(drawn: list[tuple[str, str, str, str, float]], max_bytes: int) -> None:
    made = Chunks(str, hold_s=0.15, max_bytes=max_bytes)
    now, out = 0.0, []
    told: dict[str, list[tuple[str, str, str]]] = defaultdict(list)
    for session, step, kind, text, passed in drawn:
        now += passed
        out += made.due(now)
        made.add(Delta(session, "msg", step, kind, text), now)
        told[session] += [(step, kind, character) for character in text]
    out += made.due(now + 1)
    assert not made.is_waiting
    heard: dict[str, list[tuple[str, str, str]]] = defaultdict(list)
    numbers: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for session, chunk in out:
        assert chunk.content and len(chunk.content.encode()) <= max_bytes
        heard[session] += [(chunk.step_id, chunk.chunk_type, character) for character in chunk.content]
        numbers[session, chunk.step_id, chunk.chunk_type].append(chunk.index or 0)
    assert {k: v for k, v in heard.items() if v} == {k: v for k, v in told.items() if v}
    assert all(each == list(range(len(each))) for each in numbers.values())
    assert not made.counts
