"""The comparer, which compares a stream's messages with those that the log requires, under every kind of damage."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from bridge.nats import headers as h
from bridge.nats.jetstream.streams import StreamMessage
from bridge.nats.jetstream.wire import HeaderBlock, Message
from bridge.nats.l0.context import ContextProjection
from bridge.nats.mirror.comparing import (
    Comparer,
    Comparison,
    Difference,
    Family,
)
from bridge.nats.mirror.messages import Mirror, mirrored
from streams.event import StreamEvent
from streams.retention import StreamRemoval
from streams.store import NOTHING, Record
from tests.bridge.nats.records import MIRROR, chained, event, mirror_all, recorded

DAY_MS = 24 * 3_600_000


@dataclass
class Case:
    """A log, and a stream that begins as its exact mirror."""

    family: Family = "records"
    records: list[Record] = field(default_factory=lambda: recorded("task_nested"))
    mirror: Mirror = MIRROR
    removed: dict[str, StreamRemoval] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)
    head: int | None = None
    kept: list[StreamMessage] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.kept = self.published(self.records)

    def published(self, records: Sequence[Record], mirror: Mirror | None = None, first: int = 1) -> list[StreamMessage]:
        made = mirror_all(records, mirror or self.mirror)
        mine = [m for each in made for m in (each.messages[-1:] if self.family == "records" else each.messages[:-1])]
        return [kept(message, number) for number, message in enumerate(mine, first)]

    def compare(self, *, mirrored_to: int | None = None) -> tuple[list[Difference], Comparison]:
        """Return the findings, which must be the same for headers as they come."""
        found = self._compare(self.kept, mirrored_to)
        assert self._compare([as_it_came(each) for each in self.kept], mirrored_to) == found
        return found

    def _compare(self, kept: Sequence[StreamMessage], mirrored_to: int | None) -> tuple[list[Difference], Comparison]:
        head = self.head if self.head is not None else self.records[-1].position if self.records else NOTHING
        comparer = Comparer(
            "S",
            self.family,
            self.mirror.log,
            head=head,
            mirrored_to=head if mirrored_to is None else mirrored_to,
            removed=self.removed,
            **self.more,
        )
        found: list[Difference] = []
        contexts, messages = ContextProjection(), list(kept)
        for record in self.records:
            contexts.apply(record)
            l0 = mirrored(record, contexts.of(record.event), self.mirror).messages[:-1]
            parts = [h.read_message_id(each.headers).part for each in l0]
            comparer.begin(record, [""] if self.family == "records" else parts)
            while messages and comparer.is_due(messages[0]):
                found += filter(None, [comparer.take(messages.pop(0))])
            found += comparer.end()
        found += filter(None, map(comparer.take, messages))
        found += comparer.finish()
        return found, comparer.result

    def kinds(self, **more: Any) -> list[tuple[str, int, int]]:
        return [(each.kind, each.position, each.last) for each in self.compare(**more)[0]]


def kept(message: Message, sequence: int) -> StreamMessage:
    # What the server and a publisher of batches add is nobody's fault.
    return StreamMessage(message.subject, sequence, {**message.headers, "Nats-Batch-Id": "b"}, message.body)


def as_it_came(message: StreamMessage) -> StreamMessage:
    lines = "".join(f"{name}: {value}\r\n" for name, value in message.headers.items())
    return StreamMessage(
        message.subject, message.sequence, HeaderBlock(f"NATS/1.0\r\n{lines}\r\n".encode()), message.body
    )


@pytest.mark.parametrize("family", ["records", "meanings"])
@pytest.mark.parametrize("name", ["task_nested", "chat_two_turns", "run_error"])
def test_an_exact_mirror_has_no_difference(name: str, family: Family) -> None:
    case = Case(family, recorded(name))
    found, result = case.compare()
    assert found == [] and result.compared == result.messages == len(case.kept) > 0
    case.kept = case.published(case.records, replace(MIRROR, rebuild=7))
    assert case.compare()[0] == []


@pytest.mark.parametrize("family", ["records", "meanings"])
def test_doubled_and_foreign_messages_are_extra(family: Family) -> None:
    case = Case(family)
    double = case.kept[-1]
    some = int(double.headers[h.POSITION])
    foreign = replace(double, headers={**double.headers, h.MESSAGE_ID: "01FOREIGN"})
    beyond = replace(double, headers={**double.headers, h.POSITION: "99999"})
    nowhere = replace(double, headers={**double.headers, h.POSITION: "-1"})
    other_part = replace(double, headers={**double.headers, h.MESSAGE_ID: f"{double.headers[h.MESSAGE_ID]}:zz"})
    case.kept += [double, foreign, beyond, nowhere, other_part]
    assert sorted(case.kinds()) == sorted([("extra", p, p) for p in (some, some, 99999, NOTHING, some)])


@pytest.mark.parametrize(("header", "value"), [(h.HASH, "0" * 64), (h.OFFSET, "7"), (h.FORM, "forgotten")])
def test_what_is_not_as_published_is_changed(header: str, value: str) -> None:
    case = Case()
    message = case.kept[0]
    case.kept[0] = replace(message, headers={**message.headers, header: value})
    (found,) = case.compare()[0]
    assert (found.kind, found.sequence) == ("changed", message.sequence)


def test_what_was_not_mirrored_yet_waits() -> None:
    case = Case()
    del case.kept[-3:]
    assert case.kinds() == [("missing", len(case.records) - 3, len(case.records) - 1)]
    found, result = case.compare(mirrored_to=int(case.kept[-1].headers[h.POSITION]))
    assert (found, result.waiting) == ([], 3)


# The server's limits


def aged(family: Family = "records", **more: Any) -> Case:
    """Twelve records, the first eight older than a day."""
    made = [
        event(n, "turn.started", {"session": "ses_a", "message": f"m{n}"}, ts=(n if n < 8 else 3 * DAY_MS + n))
        for n in range(12)
    ]
    return Case(family, chained(made), more=more)


@pytest.mark.parametrize(
    ("family", "limits", "gone", "found", "expired"),
    [
        ("meanings", {"old_before_ms": DAY_MS}, {*range(6)}, [], 6),
        ("meanings", {"old_before_ms": DAY_MS}, {4, 5, 10}, [(10, 10)], 2),
        ("records", {}, {*range(6)}, [(0, 5)], 0),
        ("records", {"old_before_ms": DAY_MS}, {*range(6)}, [(0, 5)], 0),
        # Nothing expires in the middle.
        ("records", {"is_full": True}, {0, 1, 4, 5}, [(4, 5)], 2),
    ],
)
def test_only_the_oldest_may_have_expired(
    family: Family, limits: dict[str, Any], gone: set[int], found: list[tuple[int, int]], expired: int
) -> None:
    case = aged(family, **limits)
    case.kept = [each for number, each in enumerate(case.kept) if number not in gone]
    differences, result = case.compare()
    assert [(each.kind, each.position, each.last) for each in differences] == [("missing", *run) for run in found]
    assert result.expired == expired


# What the log has lost on purpose


def two_streams() -> list[Record]:
    made = [
        event(n, "turn.started", {"session": name, "message": f"m{n}"}, stream_id=name)
        for n in range(10)
        for name in ("ses_a", "ses_b")[n % 2 : n % 2 + 1]
    ]
    return chained(made)


def test_a_message_of_a_hole_that_pruning_did_not_make_is_extra() -> None:
    case = Case(records=two_streams())
    case.head = 9
    case.records = [record for record in case.records if record.event.stream_id == "ses_b"]
    case.removed = {"ses_a": StreamRemoval(first_offset=2, pruned_ms=1)}
    assert case.kinds() == [("extra", 4, 4), ("extra", 6, 6), ("extra", 8, 8)]


def forget(records: Iterable[Record], stream: str) -> list[Record]:
    digest = {"$sha256": "0" * 64}
    return [
        r._replace(event=StreamEvent.trusted({**r.event.fields(), "payload": digest}))
        if r.event.stream_id == stream
        else r
        for r in records
    ]


def test_a_forgotten_record_is_there_as_its_digest_and_in_its_place() -> None:
    case = Case(
        records=forget(two_streams(), "ses_a"), removed={"ses_a": StreamRemoval(forgotten_to=5, forgotten_ms=1)}
    )
    found, result = case.compare()
    assert found == [] and result.compared == 10 and case.kept[0].headers[h.FORM] == "forgotten"
    case.kept.append(case.kept.pop(4))
    assert case.kinds() == [("missing", 4, 4), ("order", 4, 4)]
    del case.kept[-1]
    assert case.kinds() == [("missing", 4, 4)]


def test_the_payload_of_a_forgotten_record_is_found() -> None:
    case = Case(records=two_streams())
    case.records = forget(case.records, "ses_a")
    case.removed = {"ses_a": StreamRemoval(forgotten_to=5, forgotten_ms=1)}
    assert case.kinds() == [("unforgotten", p, p) for p in (0, 2, 4, 6, 8)]


# The server's payload limit


def test_another_limit_than_todays_is_no_difference() -> None:
    step = {"session": "ses_a", "part": "p", "turn": "t", "tool": "x" * 100}
    made = [event(n, "execution.step", {**step, "output": "y" * 3000 * n}) for n in range(4)]
    for then in (1000, 2048, 8192, 1024 * 1024):
        case = Case("records", chained(made))
        case.kept = case.published(case.records, replace(MIRROR, max_payload=then, rebuild=3))
        assert case.kinds() == []


def test_messages_of_another_home_do_not_disturb_the_order() -> None:
    case = Case("meanings")
    other = replace(case.kept[-1], headers={**case.kept[-1].headers, h.LOG: "01OTHER"})
    case.kept.insert(0, other)
    assert case.kinds() == []


# Anything at all


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("family", ["records", "meanings"])
def test_random_damage_is_found_exactly(family: Family, seed: int) -> None:
    rng = random.Random(seed)
    case = Case(family, recorded("task_nested"))
    messages = list(case.kept)
    gone = set(rng.sample(range(len(messages)), rng.randrange(len(messages) // 2)))
    changed = {n for n in rng.sample(range(len(messages)), 3) if n not in gone and family == "records"}
    doubled = {n for n in rng.sample(range(len(messages)), 3) if n not in gone}
    case.kept = [
        replace(m, headers={**m.headers, h.HASH: "0" * 64}) if n in changed else m
        for n, m in enumerate(messages)
        if n not in gone
    ] + [messages[n] for n in sorted(doubled)]
    found, result = case.compare()
    assert {e.sequence for e in found if e.kind == "changed"} == {messages[n].sequence for n in changed}
    assert {e.sequence for e in found if e.kind in ("extra", "order")} == {messages[n].sequence for n in doubled}
    assert result.differences["missing"] == len(gone)
    told = {p for e in found if e.kind == "missing" for p in range(e.position, e.last + 1)}
    assert {int(messages[n].headers[h.POSITION]) for n in gone} <= told
    assert {e.kind for e in found} <= {"missing", "changed", "extra", "order"}
