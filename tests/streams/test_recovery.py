"""A journal that is damaged: opening repairs what was never acknowledged, reports everything else by file and line, and
is never silent. What the database has, too, cannot be lost.

A *cut* is the size a segment is truncated to. Every cut and flip is scanned as in an opening.
``TORTURE_OPENINGS`` sets how many cuts are opened in full; ``TORTURE_READ_EVERY`` = 1 makes readers read every flip.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from zlib import crc32

import orjson
import pytest

from streams.errors import CorruptLog
from streams.hashing import GENESIS
from streams.log.reader import LogReader
from streams.query import Filter
from streams.store import Record
from streams.stores.head import EMPTY_HEAD, Head, check_crc, format_head
from streams.stores.journal.recovery import Recovered
from streams.stores.journal.recovery import recover as scan
from tests.streams.builders import event
from tests.streams.logs import Log, files, findings, make_log, open_store
from tests.streams.opened import collect, held
from tests.streams.sizes import size

OPENINGS = size("OPENINGS", 24)
READ_EVERY = size("READ_EVERY", 61)

Expected = tuple[str, int, int]
"""("corrupt", line, position), or ("kept", records, bytes)."""

HEADS = ["intact", "rewound", "missing"]


def recover(journal: Path, head: Head | None) -> Recovered:
    """Scan a journal whose database has no record."""
    return scan(journal, head, EMPTY_HEAD, lambda _: (0, GENESIS))


@pytest.fixture(scope="module")
def long_log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    """One segment of about 5 KiB."""
    return make_log(tmp_path_factory.mktemp("long"), [1, 2, 1, 3], text=size("LONG_TEXT", 60))


@pytest.fixture(scope="module")
def small_log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    return make_log(tmp_path_factory.mktemp("small"), [1, 2, 1], text=0)


# Truncation


def head_of(log: Log, state: str) -> int | None:
    """The head's position in each state: after the last commit, after an earlier one, no head file."""
    return {"intact": len(log.records) - 1, "rewound": 3, "missing": None}[state]


def expected_after(log: Log, cut: int, head: int | None) -> Expected:
    lines = sum(end <= cut for end in log.ends)
    if head is not None and lines <= head:
        return ("corrupt", lines + 1, lines)
    return ("kept", *log.whole(cut))


@pytest.mark.parametrize("state", HEADS)
def test_a_segment_cut_at_every_byte_is_judged_rightly(tmp_path: Path, long_log: Log, state: str) -> None:
    position = head_of(long_log, state)
    head = None if position is None else long_log.head(position)
    segment = long_log.put(tmp_path / "store")
    wrong = []
    for cut in range(len(long_log.data), -1, -1):
        os.truncate(segment, cut)
        try:
            found = recover(segment.parent, head)
            got: Expected = ("kept", found.index.next_position(), found.size)
            is_torn = found.torn is not None
        except CorruptLog as error:
            assert error.file == str(segment) and f"{segment}:{error.line}" in str(error)
            assert error.position is not None and error.line is not None
            got, is_torn = ("corrupt", error.line, error.position), False
        if got != expected_after(long_log, cut, position) or is_torn != (got[0] == "kept" and got[2] < cut):
            wrong.append((cut, got, is_torn))
    assert wrong == []


@pytest.mark.parametrize("state", HEADS)
async def test_opening_repairs_a_torn_tail_or_changes_nothing(tmp_path: Path, long_log: Log, state: str) -> None:
    position = head_of(long_log, state)
    around = {max(end + by, 0) for end in [0, *long_log.ends[:-1]] for by in (-1, 0, 1, 300)}
    others = Random(5).sample(range(len(long_log.data)), min(OPENINGS, len(long_log.data)))
    for cut in sorted({*others[: max(OPENINGS - len(around), 0)], *around, len(long_log.data)}):
        store = tmp_path / f"{cut}"
        segment = long_log.put(store, long_log.data[:cut], head=position)
        before = files(store)
        kind, count, end = expected_after(long_log, cut, position)
        if kind == "corrupt":
            with pytest.raises(CorruptLog) as raised:
                await open_store(store)
            assert (raised.value.file, raised.value.line, raised.value.position) == (str(segment), count, end)
            assert files(store) == before, "a log that is not trusted is not touched"
            continue
        log = await open_store(store)
        assert log.head == count - 1 and await collect(log.read_all()) == long_log.records[:count]
        assert segment.read_bytes() == long_log.data[:end]
        assert log.head_lost == (position is None)
        if cut > end:
            assert log.torn is not None and log.torn.parent == store / "torn"
            assert log.torn.read_bytes() == long_log.data[end:cut], "what was cut off is kept"
        else:
            assert log.torn is None and not (store / "torn").exists()
        assert (await log.append([event("next")]))[0].position == count
        await log.close()
        assert await findings(store) == []


async def test_recovery_after_recovery_keeps_every_torn_tail(tmp_path: Path, small_log: Log) -> None:
    for number in range(3):
        if number == 0:
            segment = small_log.put(tmp_path / "store")
        with segment.open("ab") as file:
            file.write(b"torn %d" % number)
        log = await open_store(tmp_path / "store")
        assert log.torn is not None and log.torn.read_bytes() == b"torn %d" % number
        await log.close()
    assert len(list((tmp_path / "store" / "torn").iterdir())) == 3
    assert segment.read_bytes() == small_log.data


# Bit flips


async def test_one_flipped_bit_anywhere_is_found_by_all(tmp_path: Path, small_log: Log) -> None:
    segment = small_log.put(tmp_path)
    head = small_log.head(3)
    reader = LogReader(tmp_path)
    data = bytearray(small_log.data)
    for byte in range(len(data)):
        line = sum(end <= byte for end in small_log.ends) + 1
        data[byte] ^= 1 << byte % 8
        segment.write_bytes(data)
        place = f"byte {byte}, line {line}"
        with pytest.raises(CorruptLog) as raised:
            recover(segment.parent, head)
        assert (raised.value.file, raised.value.line, raised.value.position) == (str(segment), line, line - 1), place
        if byte % READ_EVERY and byte + 1 not in small_log.ends:
            data[byte] ^= 1 << byte % 8
            continue
        seen: list[Record] = []
        with pytest.raises(CorruptLog) as raised:
            async for record in reader.read_all():
                seen.append(record)  # noqa: PERF401 - what came before the fault counts
        assert (raised.value.file, raised.value.line, raised.value.position) == (str(segment), line, line - 1), place
        assert seen == small_log.records[: line - 1], place
        found = await findings(tmp_path)
        assert found and found[0][1:] == (segment.name, line, line - 1), place
        data[byte] ^= 1 << byte % 8


async def test_a_bit_flipped_under_an_open_log_is_found_when_read_and_is_not_moved(
    tmp_path: Path, small_log: Log
) -> None:
    segment = small_log.put(tmp_path)
    data = bytearray(small_log.data)
    data[small_log.ends[1] - 30] ^= 4
    key = small_log.records[1].event.idempotency_key
    stream = small_log.records[1].event.stream_id
    with held():
        log = await open_store(tmp_path)
    segment.write_bytes(data)
    for reading in (lambda: log.find(key), lambda: collect(log.read(stream)), lambda: collect(log.read_all())):
        with pytest.raises(CorruptLog) as raised:
            await reading()
        assert (raised.value.file, raised.value.line, raised.value.position) == (str(segment), 2, 1)
    # A duplicate that cannot be read is refused; the log itself continues.
    with pytest.raises(CorruptLog):
        await log.append([event(key.removeprefix("test:"))])
    with pytest.raises(CorruptLog) as raised:
        await asyncio.to_thread(log.mover.drain, log.head)
    assert (raised.value.file, raised.value.line, raised.value.position) == (str(segment), 2, 1)
    assert (await log.append([event("next")]))[0].position == 4
    await log.close()
    with pytest.raises(CorruptLog):
        await open_store(tmp_path)
    assert len(await findings(tmp_path)) == 1


# Damage of what the database has, too


@pytest.mark.parametrize("head", [-1, None])
@pytest.mark.parametrize("moved", [1, 3, 4])
@pytest.mark.parametrize("how", ["damaged", "gone", "one line"])
async def test_lines_that_the_database_has_may_be_lost(
    tmp_path: Path, small_log: Log, moved: int, head: int | None, how: str
) -> None:
    lost, rest = b"".join(small_log.lines[:moved]), b"".join(small_log.lines[moved:])
    made = {"damaged": bytes(byte if byte == 10 else 120 for byte in lost), "gone": b"", "one line": b"x\n"}[how]
    small_log.put(tmp_path, made + rest, head=head, moved=moved)
    reader = LogReader(tmp_path)
    if how != "damaged" and moved < 4 and (moved, how) != (1, "one line"):
        # What follows stands in the wrong line, and the database does not have it.
        with pytest.raises(CorruptLog):
            await open_store(tmp_path)
        with pytest.raises(CorruptLog):
            await collect(reader.read_all())
        assert await findings(tmp_path) != []
        await reader.close()
        return
    assert await collect(reader.read_all()) == small_log.records
    await reader.close()
    assert await findings(tmp_path) == ([] if head is not None else [("missing", "head", None, None)])
    log = await open_store(tmp_path)
    assert await collect(log.read_all()) == small_log.records
    assert (await log.append([event("next")]))[0].position == 4
    await log.close()
    assert await findings(tmp_path) == []


@pytest.mark.parametrize("cut", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("moved", [1, 3, 4])
async def test_a_journal_that_ends_before_the_database_does(
    tmp_path: Path, small_log: Log, cut: int, moved: int
) -> None:
    """After a restore or a power loss: the records from the end of the database on count."""
    data = small_log.data[: small_log.ends[cut - 1] if cut else 0]
    small_log.put(tmp_path, data, moved=moved)
    if cut < 4 and moved < 4:
        with pytest.raises(CorruptLog) as raised:
            await open_store(tmp_path)
        assert raised.value.position == max(moved, cut)
        assert any(kind == "missing" for kind, *_ in await findings(tmp_path))
        return
    log = await open_store(tmp_path)
    assert await collect(log.read_all()) == small_log.records
    assert (await log.append([event("next")]))[0].position == 4
    await log.close()
    assert await findings(tmp_path) == []


@pytest.fixture(scope="module")
def other_log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    return make_log(tmp_path_factory.mktemp("other"), [2, 2, 1], text=8)


async def test_a_database_of_another_log_is_noticed(tmp_path: Path, small_log: Log, other_log: Log) -> None:
    for moved in (2, 4, 5):
        store = tmp_path / str(moved)
        small_log.put(store)
        other_log.put(tmp_path / f"other{moved}", moved=moved)
        (store / "log.db").write_bytes((tmp_path / f"other{moved}" / "log.db").read_bytes())
        with pytest.raises(CorruptLog):
            await open_store(store)
        assert await findings(store) != []


# Other damage below head


def zero_tail(lines: list[bytes]) -> bytes:
    data = b"".join(lines)
    return data[:-200] + bytes(200)


DAMAGE: dict[str, tuple[Callable[[list[bytes]], bytes], int, str]] = {
    "zero-filled tail": (zero_tail, 4, "corrupt"),
    "zeros after the end": (lambda lines: b"".join(lines)[:-1] + bytes(512), 4, "corrupt"),
    "duplicated line": (lambda lines: b"".join([*lines[:2], lines[1], *lines[2:]]), 3, "tampered"),
    "swapped lines": (lambda lines: b"".join([lines[0], lines[2], lines[1], lines[3]]), 2, "missing"),
    "deleted first line": (lambda lines: b"".join(lines[1:]), 1, "tampered"),
    "deleted line": (lambda lines: b"".join([lines[0], *lines[2:]]), 2, "missing"),
    "deleted lines": (lambda lines: b"".join([lines[0], *lines[3:]]), 2, "missing"),
    "deleted last line": (lambda lines: b"".join(lines[:-1]), 4, "missing"),
    "empty line": (lambda lines: b"".join([lines[0], b"\n", *lines[1:]]), 2, "corrupt"),
    "no newline between": (lambda lines: lines[0][:-1] + b"".join(lines[1:]), 1, "corrupt"),
    "carriage returns": (lambda lines: b"".join(lines).replace(b"\n", b"\r\n"), 1, "corrupt"),
    "empty file": (lambda lines: b"", 1, "missing"),
    "foreign text": (lambda lines: b"hello\n" + b"".join(lines), 1, "corrupt"),
}
"""The damage, the line at which it is told, and what ``verify`` calls it."""


@pytest.mark.parametrize("damage", DAMAGE)
async def test_damage_below_head_is_named_by_all(tmp_path: Path, small_log: Log, damage: str) -> None:
    make, line, kind = DAMAGE[damage]
    segment = small_log.put(tmp_path, make(list(small_log.lines)))
    before = files(tmp_path)
    for reading in (open_store(tmp_path), collect(LogReader(tmp_path).read_all())):
        with pytest.raises(CorruptLog) as raised:
            await reading
        assert (raised.value.file, raised.value.line, raised.value.position) == (str(segment), line, line - 1)
        assert f"{segment}:{line}" in str(raised.value)
    assert (await findings(tmp_path))[0][0] == kind
    assert files(tmp_path) == before


@pytest.mark.parametrize("data", [bytes(512), b"{}\n", b'{"crc":"', b"\n\n\n"])
@pytest.mark.parametrize("head", [-1, None])
async def test_rubbish_above_head_is_cut_off(tmp_path: Path, small_log: Log, data: bytes, head: int | None) -> None:
    segment = small_log.put(tmp_path, small_log.data + data, head=head)
    log = await open_store(tmp_path)
    assert await collect(log.read_all()) == small_log.records
    assert log.torn is not None and log.torn.read_bytes() == data
    assert segment.read_bytes() == small_log.data
    await log.close()


async def test_without_a_head_file_damage_before_whole_records_is_damage(tmp_path: Path, small_log: Log) -> None:
    lines = list(small_log.lines)
    small_log.put(tmp_path, b"".join([lines[0], b"rubbish\n", *lines[1:]]), head=None)
    with pytest.raises(CorruptLog) as raised:
        await open_store(tmp_path)
    assert raised.value.line == 2


async def test_a_head_of_another_log_is_noticed(tmp_path: Path, small_log: Log) -> None:
    segment = small_log.put(tmp_path)
    (tmp_path / "head").write_bytes(format_head(Head(2, "0" * 64)))
    with pytest.raises(CorruptLog, match="hash differs") as raised:
        await open_store(tmp_path)
    assert (raised.value.file, raised.value.line) == (str(segment), 3)


# Lines that a checksum does not betray: their content is wrong


def forged(line: bytes, **changes: object) -> bytes:
    body = orjson.dumps({**orjson.loads(line), **changes}, option=orjson.OPT_SORT_KEYS)[18:-1] + b"}"
    text = b'{"crc":"%08x",%b' % (crc32(body), body)
    check_crc(text)
    return text + b"\n"


@pytest.mark.parametrize("head", [-1, 0])
@pytest.mark.parametrize(
    ("number", "changes"),
    [
        (2, {"offset": 7}),
        (2, {"hash": "no hash"}),
        (2, {"hash": 5}),
        (2, {"position": -1}),
        (2, {"tx": [2, 2]}),
        (2, {"tx": [1, 3]}),
        (2, {"event": []}),
        (2, {"event": {}}),
        (1, {"tx": [1, 2]}),
    ],
)
async def test_a_line_that_cannot_follow_is_no_part_of_the_log(
    tmp_path: Path, small_log: Log, number: int, changes: dict[str, object], head: int
) -> None:
    """Below head it is damage; above head the whole batch is cut off, its first record too."""
    lines = list(small_log.lines)
    lines[number] = forged(lines[number], **changes)
    segment = small_log.put(tmp_path, b"".join(lines), head=head)
    if head != 0:
        with pytest.raises(CorruptLog) as raised:
            await open_store(tmp_path)
        assert raised.value.line == number + 1
        return
    log = await open_store(tmp_path)
    assert log.head == 0 and await collect(log.read_all()) == small_log.records[:1]
    assert segment.read_bytes() == small_log.lines[0]
    assert (await log.append([event("next")]))[0].position == 1
    await log.close()


async def test_damage_is_not_passed_over_by_a_reader_that_looks_for_something_else(
    tmp_path: Path, small_log: Log
) -> None:
    """A record with a damaged stream name must not silently be missing from that stream."""
    for number, record in enumerate(small_log.records):
        start = small_log.ends[number - 1] if number else 0
        at = small_log.data.index(b'"stream_id":"', start) + len(b'"stream_id":"')
        damaged = small_log.data[:at] + b"#" + small_log.data[at + 1 :]
        store = tmp_path / str(number)
        small_log.put(store, damaged)
        reader = LogReader(store)
        for reading in (
            reader.read(record.event.stream_id),
            reader.query(Filter(streams=[record.event.stream_id])),
            reader.query(Filter(types=["never"])),
        ):
            with pytest.raises(CorruptLog, match="wrong checksum") as raised:
                await collect(reading)
            assert raised.value.position == number
