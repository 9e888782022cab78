"""One record → its messages: pinned bytes, every recording, and generated records."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.nats import headers as h
from bridge.nats.jetstream.stream_plan import keeps, wanted
from bridge.nats.jetstream.wire import Message, wire_size
from bridge.nats.l0.captured import MEANINGS
from bridge.nats.l0.context import RecordContext
from bridge.nats.l0.payloads import Step, Task
from bridge.nats.mirror.messages import BATCH_RESERVE, Mirror, is_forgotten, mirrored
from bridge.nats.subjects import L0Subject, RecordSubject
from streams.bus.headers import check_headers
from streams.bus.subjects import check_subject
from streams.event import StreamEvent
from streams.hashing import GENESIS, canonical, chain, digest_form_of
from streams.store import Record
from tests.bridge.nats.records import LOG, MIRROR, chained, event, mirror_all, recorded
from tests.bridge.nats.vectors import FILE, computed
from tests.bridge.opencode.playing import names
from tests.streams.sizes import size
from tools.l0_messages import decode

many = settings(max_examples=size("EXAMPLES", 60), deadline=None, derandomize=True, database=None)

CREATED = event(0, "lifecycle.session.created", {"session": "ses_a", "lineage": "root", "project": "p"})
PINNED: list[dict[str, Any]] = json.loads(FILE.read_text())


def own(made: Any) -> Message:
    """The record's own message, the last."""
    message: Message = made.messages[-1]
    return message


def on_the_wire(message: Message) -> bytes:
    lines = b"".join(f"{k}: {v}\r\n".encode() for k, v in message.headers.items())
    return (b"NATS/1.0\r\n" + lines + b"\r\n" if lines else b"") + message.body


def test_messages_are_as_pinned() -> None:
    assert computed() == PINNED
    assert len(PINNED) >= 20
    notes = {note.split(":")[0] for row in PINNED for note in row["notes"]}
    every = "trace_made trace_invalid tracestate_dropped reserved_keys pointer stub l0_skipped"
    assert notes == set(every.split())


@pytest.mark.parametrize("name", names())
def test_a_recording_is_mirrored_whole_in_order_and_once(name: str) -> None:
    records = recorded(name)
    made = mirror_all(records)
    assert [note for each in made for note in each.notes if not note.startswith("l0_skipped")] == []
    heads: dict[str, bytes] = {}
    for position, (record, each) in enumerate(zip(records, made, strict=True)):
        message = own(each)
        # A consumer that knows nothing else chains the bodies and finds the log's own hashes.
        fields = orjson.loads(message.body)
        assert message.body == canonical(record.event.fields())
        parsed = RecordSubject.parse(message.subject)
        assert (parsed.log, parsed.stream, parsed.type) == (LOG, fields["stream_id"], fields["type"])
        heads[parsed.stream] = chain(heads.get(parsed.stream, GENESIS), digest_form_of(message.body)[1])
        assert message.headers[h.HASH] == heads[parsed.stream].hex() == record.hash
        assert message.headers[h.POSITION] == str(position) and message.headers[h.OFFSET] == str(record.offset)
        assert message.headers[h.FORM] == "whole" and message.headers[h.MESSAGE_ID] == record.event.id
        told = [L0Subject.parse(m.subject).suffix for m in each.messages[:-1]]
        if each.notes:
            assert told == []
        else:
            assert tuple(told) == MEANINGS.get(record.event.type, ())
    every = [message for each in made for message in each.messages]
    ids = [message.headers[h.MESSAGE_ID] for message in every]
    assert len(set(ids)) == len(ids)
    for message in every:
        check_subject(message.subject)
        check_headers(message.headers)
        assert wire_size(message.headers, len(message.body)) == len(on_the_wire(message))
        stream = keeps(wanted(), message.subject)
        assert stream is not None
        assert stream.name == ("cg_evt_v1" if message.subject.startswith("cg.") else "MESHFORGE_EVENTS")


@pytest.mark.parametrize("name", ["task_nested", "tool_chain", "chat_two_turns", "run_error", "abort_task"])
def test_l0_tells_a_session_as_it_was(name: str) -> None:
    records = recorded(name)
    steps = {record.event.id: record for record in records if record.event.type == "execution.step"}
    ended = {record.event.id: record for record in records if record.event.type == "turn.ended"}
    told = [m for each in mirror_all(records) for m in each.messages[:-1]]
    seen_steps, seen_tasks, epochs = 0, 0, dict[str, list[int]]()
    for message in told:
        subject, payload = decode(message.subject, message.body)
        fields = payload.fields()
        assert message.headers["traceparent"] and message.headers["CG-Recursion-Depth"] in {"0", "1", "2"}
        if isinstance(payload, Step):
            event_ = steps[fields["metadata"]["event"]].event
            assert (subject.target, payload.agent_turn_id, payload.step_id) == (
                event_.payload["session"],
                event_.payload["turn"],
                event_.payload["part"],
            )
            assert message.headers["traceparent"] == event_.traceparent
            position = steps[fields["metadata"]["event"]].position
            assert (message.headers[h.LOG], message.headers[h.POSITION]) == (LOG, str(position))
            assert not {"input", "output"} & set(fields["metadata"])
            seen_steps += 1
        elif isinstance(payload, Task):
            assert fields["stats"]["outcome"] == ended[fields["stats"]["event"]].event.payload["outcome"]
            seen_tasks += 1
        elif fields["status"] == "running":
            epochs.setdefault(subject.target, []).append(fields["turn_epoch"])
    assert (seen_steps, seen_tasks) == (len(steps), len(ended)) and seen_tasks
    assert all(each == list(range(1, len(each) + 1)) for each in epochs.values())


def test_the_body_is_what_the_log_has_hashed_whoever_wrote_it() -> None:
    """JSON leaves open how a float is written, so a log may hold another form than the one that is written today."""
    record = chained([event(1, "agent.note", {"n": 1e20})])[0]
    today = canonical(record.event.fields())
    line = today.replace(b"1e+20", b"1e20") if b"1e+20" in today else today.replace(b"1e20", b"1e+20")
    assert line != today
    hash_ = chain(GENESIS, digest_form_of(line)[1])
    written = StreamEvent.trusted(orjson.loads(line), line)
    message = own(mirrored(record._replace(event=written, hash=hash_.hex()), RecordContext(), MIRROR))
    assert message.body == line
    assert chain(GENESIS, digest_form_of(message.body)[1]).hex() == message.headers[h.HASH]


# Size


def big(size: int, **more: Any) -> Record:
    payload = {"session": "ses_a", "part": "prt_1", "turn": "msg_1", "output": "x" * size}
    return chained([event(1, "execution.step", payload, **more)])[0]


def test_the_limit_is_exact() -> None:
    whole = own(mirrored(big(1000), RecordContext("p", "ses_a", 0), MIRROR))
    room = len(on_the_wire(whole)) + BATCH_RESERVE
    forms = {
        limit: own(mirrored(big(1000), RecordContext("p", "ses_a", 0), Mirror(LOG, max_payload=limit))).headers[h.FORM]
        for limit in (room + 20, room + len("forgotten") - len("whole"), room - 1)
    }
    assert list(forms.values()) == ["whole", "whole", "pointer"]


def test_an_l0_message_gives_up_what_is_optional_first_and_itself_last() -> None:
    tokens = {"k" * 400 + str(n): n for n in range(30)}
    record = chained([event(1, "execution.step", {"session": "ses_a", "part": "p", "turn": "t", "tokens": tokens})])[0]
    context = RecordContext("p", "ses_a", 0)
    whole = mirrored(record, context, MIRROR)
    assert len(whole.messages[0].body) > 10_000
    less = mirrored(record, context, Mirror(LOG, max_payload=4096))
    assert orjson.loads(less.messages[0].body) == {"agent_turn_id": "t", "phase": "completed", "step_id": "p"}
    none = mirrored(record, context, Mirror(LOG, max_payload=300))
    assert "l0_skipped:execution.step:too_large" in none.notes and len(none.messages) == 1


# Forgotten


def test_a_forgotten_record_is_told_as_such_and_still_chains() -> None:
    record = big(1000)
    digest = sha256(canonical(record.event.payload)).hexdigest()
    forgotten = record._replace(event=StreamEvent.trusted({**record.event.fields(), "payload": {"$sha256": digest}}))
    assert is_forgotten(forgotten.event) and not is_forgotten(record.event)
    for alike in ({}, {"$sha256": "x"}, {"$sha256": 5}, {"$sha256": "0" * 64, "a": 1}):
        assert not is_forgotten(event(1, "agent.note", alike))
    made = mirrored(forgotten, RecordContext("p", "ses_a", 0), MIRROR)
    message = own(made)
    assert made.notes == ("l0_skipped:execution.step:forgotten",)
    assert message.headers[h.FORM] == "forgotten" and message.headers[h.HASH] == record.hash
    assert chain(GENESIS, message.body).hex() == record.hash
    assert b"xxx" not in on_the_wire(message)


# Anything at all

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(st.characters(codec=None, categories=None), max_size=20)
    | st.sampled_from(["x" * 600, "error", "a\r\nb", "", 10**30]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=6,
)
known = st.sampled_from(
    [
        *(
            "session",
            "turn",
            "part",
            "message",
            "outcome",
            "error",
            "status",
            "tokens",
            "kind",
            "tool",
            "call",
            "model",
        ),
        *("cost", "steps", "trigger", "finish", "child", "started_ms", "duration_ms", "parent", "project", "lineage"),
    ]
)


@many
@given(
    st.sampled_from(["execution.step", "turn.started", "turn.ended", "lifecycle.session.created", "agent.note"]),
    st.dictionaries(known, values, max_size=8),
    st.text(st.characters(codec=None, categories=None), max_size=30),
    st.none() | st.text(st.characters(codec=None, categories=None), max_size=60),
    st.booleans(),
    st.sampled_from([700, 1024, 1024 * 1024]),
)
def test_no_record_stops_the_mirror(
    type_: str, payload: dict[str, Any], agent: str, trace: str | None, has_state: bool, limit: int
) -> None:
    made_event = event(
        1,
        type_,
        {"session": "ses_a", **payload},
        source={"agent": agent, "adapter": "x"},
        traceparent=trace,
        metadata={"tracestate": trace} if has_state else {},
    )
    records = chained([CREATED, made_event])
    mirror = Mirror(LOG, max_payload=limit)
    for each in mirror_all(records, mirror):
        for message in each.messages:
            check_subject(message.subject)
            check_headers(message.headers)
            assert b"\r\n\r\n" not in on_the_wire(message)[: -len(message.body) - 4]
            if message.subject.startswith("cg."):
                decode(message.subject, message.body)
            if limit > 1024:
                assert wire_size(message.headers, len(message.body)) <= limit


@pytest.mark.parametrize("field", ["id", "hash"])
def test_a_log_that_was_tampered_with_adds_no_header(field: str) -> None:
    """Records read back are not checked again; a line hidden in one overrides no header, and is not sent."""
    (record,) = chained([CREATED])
    bad = "x\r\nCG-Recursion-Depth: 7"
    if field == "id":
        record = record._replace(event=StreamEvent.trusted(record.event.fields() | {"id": bad}))
    else:
        record = record._replace(hash=bad)
    (made,) = mirror_all([record])
    headers = own(made).headers
    assert headers["CG-Recursion-Depth"] == "0"
    assert not h.are_lines(h.header_lines(headers), len(headers))
