"""Items from links and from spools of dead processes are recorded once, and finished only when durable."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from bridge.opencode.capture.emitter import Means
from bridge.opencode.capture.translate import Origin, Translator
from bridge.opencode.link.frames import HookItem
from bridge.opencode.link.lenient import FrameError
from bridge.opencode.link.protocol import CallError
from bridge.opencode.link.spool import parse_line
from sidecar.processes import space_of
from sidecar.record.backlog import backlog
from sidecar.record.ingest import Ingest
from sidecar.record.spools import MAX_UNSETTLED_BYTES, MAX_UNSETTLED_ITEMS, take_left, take_marks
from streams.errors import StoreFailed
from streams.event import StreamEvent
from streams.identity import seeded_identity, system_identity
from streams.store import NOTHING
from tests.bridge.opencode.playing import recording
from tests.memory import MemoryStore
from tests.sidecar.support import FakeLink, spool_line

BOOT, INSTANCE = "a" * 32, "1" * 16


class GatedStore(MemoryStore):
    """A store that is slow until the gate opens, or that fails."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.fault: Exception | None = None

    async def append(self, *args: Any, **kwargs: Any) -> Any:
        await self.gate.wait()
        if self.fault is not None:
            raise self.fault
        return await super().append(*args, **kwargs)


@pytest.fixture
async def store() -> GatedStore:
    return GatedStore()


@pytest.fixture
async def ingest(store: GatedStore) -> AsyncIterator[Ingest]:
    ingest = Ingest(
        store,
        Translator(seeded_identity(1), means=Means(hold_s=0.2)),
        seeded_identity(1).now_ms,
        exclude=[Path("/home/ada/secret")],
    )
    yield ingest
    store.gate.set()
    await ingest.close()


def dead_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def spool(
    directory: Path,
    pid: int,
    *,
    name: str = f"{BOOT}-{INSTANCE}.jsonl",
    tail: str = "",
    hooks: Iterable[HookItem] | None = None,
    space: str = "",
) -> Path:
    """A spool of a whole recorded chat, as the shim writes it."""
    header = {
        "spool": 2,
        "pid_space": space,
        "pid": pid,
        "started_ms": system_identity().now_ms(),
        "directory": "/home/ada",
    }
    lines = [json.dumps(header)]
    for seq, item in enumerate(hooks or [item for _, item in recording("chat")], 1):
        fields = {"hook": item.hook, "t": item.t, "input": item.input, "output": item.output}
        lines.append(spool_line(seq, fields))
    path = directory / name
    path.write_text("\n".join(lines) + "\n" + tail)
    path.chmod(0o600)
    return path


async def types(store: MemoryStore) -> list[str]:
    return [record.event.type async for record in store.read_all()]


async def test_a_dead_process_spool_is_taken_in_and_deleted(tmp_path: Path, store: MemoryStore, ingest: Ingest) -> None:
    path = spool(tmp_path, dead_pid())
    assert backlog(tmp_path)["files"] == 1 and backlog(tmp_path)["bytes"] > 1000
    assert await take_left(tmp_path, ingest) == len(recording("chat"))
    assert not path.exists()
    assert (await types(store))[0] == "lifecycle.session.created" and len(await types(store)) == 6


async def test_what_was_sent_before_is_not_doubled(tmp_path: Path, store: MemoryStore, ingest: Ingest) -> None:
    link = FakeLink(BOOT, INSTANCE)
    ingest.take(Origin(BOOT, INSTANCE), 1, [item for _, item in recording("chat")], link)
    await link.until(range(1, len(recording("chat")) + 1))
    spool(tmp_path, dead_pid())
    await take_left(tmp_path, ingest)
    assert len(await types(store)) == 6


async def test_a_living_process_keeps_its_spool(tmp_path: Path, store: MemoryStore, ingest: Ingest) -> None:
    path = spool(tmp_path, os.getpid())
    assert await take_left(tmp_path, ingest) == 0
    assert path.exists() and await types(store) == []


async def test_a_pid_counts_in_its_own_namespace(tmp_path: Path, store: MemoryStore, ingest: Ingest) -> None:
    spool(tmp_path, os.getpid(), space=space_of("pid"))
    assert await take_left(tmp_path, ingest) == 0
    if space_of("pid"):
        spool(tmp_path, os.getpid(), space="pid:[1]")  # nothing with this pid runs there
        assert await take_left(tmp_path, ingest) == len(recording("chat"))


async def test_a_linked_instance_empties_its_own_spool(tmp_path: Path, store: MemoryStore, ingest: Ingest) -> None:
    ingest.opened(FakeLink(BOOT, INSTANCE))
    path = spool(tmp_path, dead_pid())
    assert await take_left(tmp_path, ingest) == 0
    assert path.exists()


async def test_a_pid_that_another_program_has_now_is_a_dead_process(
    tmp_path: Path, store: MemoryStore, ingest: Ingest
) -> None:
    path = spool(tmp_path, os.getpid())
    lines = path.read_text().split("\n")
    header = json.loads(lines[0]) | {"started_ms": 1}
    path.write_text("\n".join([json.dumps(header), *lines[1:]]))
    await take_left(tmp_path, ingest)
    assert not path.exists() and len(await types(store)) == 6


async def gaps(store: MemoryStore) -> list[tuple[str, int, int]]:
    """Reason, first and last lost seq of each gap in the log."""
    events = [record.event async for record in store.read_all() if record.event.type == "capture.gap"]
    assert all(e.payload["lost"] == e.payload["last_seq"] - e.payload["first_seq"] + 1 for e in events)
    return [(e.payload["reason"], e.payload["first_seq"], e.payload["last_seq"]) for e in events]


def bus_events(number: int) -> list[HookItem]:
    """Hooks that make one event each, with the number as the time."""
    return [HookItem("event", n, {"event": {"type": "x.y", "id": f"evt_{n}"}}, None) for n in range(1, number + 1)]


async def test_a_torn_last_line_is_told_as_a_gap_and_empty_lines_after_it_are_not(
    tmp_path: Path, store: MemoryStore, ingest: Ingest
) -> None:
    spool(tmp_path, dead_pid(), tail='{"seq": 99, "item": {"hook": "ev' + 9 * "\n", hooks=bus_events(3))
    await take_left(tmp_path, ingest)
    assert await gaps(store) == [("spool_damaged", 4, 4)]


@pytest.mark.parametrize("emptied", [1, 40, 180, 300])
async def test_a_spool_whose_shim_was_killed_while_it_emptied_the_file_has_nothing(
    tmp_path: Path, store: MemoryStore, ingest: Ingest, emptied: int
) -> None:
    path = spool(tmp_path, dead_pid(), hooks=bus_events(3))
    header, _, lines = path.read_bytes().partition(b"\n")
    path.write_bytes(header + b"\n" + min(emptied, len(lines)) * b"\n" + lines[emptied:])
    assert await take_left(tmp_path, ingest) == 0
    assert store.head == NOTHING and not path.exists()


# Line 0 is the header, line n holds seq n, of 9.
DAMAGE: dict[str, tuple[Callable[[list[bytes]], None], tuple[int, int]]] = {
    "a digit of the seq": (lambda lines: change(lines, 5, b'"seq":5', b'"seq":9'), (5, 5)),
    "a prefix": (lambda lines: change(lines, 5, b'"seq"', b'"sEq"'), (5, 5)),
    "the item": (lambda lines: change(lines, 5, b'"evt_5"', b'"evt_6"'), (5, 5)),
    "t": (lambda lines: change(lines, 5, b'"t": 5', b'"t": x'), (5, 5)),
    "the sum": (lambda lines: change(lines, 5, b'"sum":"', b'"sum":"g'), (5, 5)),
    "the last brace": (lambda lines: change(lines, 5, b"null}}", b"null}]"), (5, 5)),
    "the newline": (lambda lines: lines.insert(5, lines.pop(5) + b"x" + lines.pop(5)), (5, 6)),
    "a hole": (lambda lines: lines.__delitem__(slice(3, 6)), (3, 5)),
    "the first line": (lambda lines: change(lines, 1, b"seq", b"SEQ"), (1, 1)),
    "the last line": (lambda lines: change(lines, 9, b"seq", b"SEQ"), (9, 9)),
}


def change(lines: list[bytes], number: int, old: bytes, new: bytes) -> None:
    assert old in lines[number]
    lines[number] = lines[number].replace(old, new, 1)


@pytest.mark.parametrize("what", DAMAGE)
async def test_damage_costs_its_own_items_and_a_gap_names_them(
    tmp_path: Path, store: MemoryStore, ingest: Ingest, what: str
) -> None:
    path = spool(tmp_path, dead_pid(), hooks=bus_events(9))
    lines = path.read_bytes().splitlines()
    damage, (first, last) = DAMAGE[what]
    damage(lines)
    path.write_bytes(b"\n".join(lines) + b"\n")
    await take_left(tmp_path, ingest)
    assert await gaps(store) == [("spool_damaged", first, last)]
    kept = [record.event.ts async for record in store.read_all() if record.event.type == "opencode.x.y"]
    assert kept == [n for n in range(1, 10) if not first <= n <= last]


def test_the_sum_is_the_vector_that_the_shims_tests_use_too() -> None:
    line = '{"seq":7,"sum":"7d8d7d7f","item":{"ä":1}}'
    with pytest.raises(FrameError, match="not a hook"):  # but its sum is right
        parse_line(line.encode())


class WaitedFor(Ingest):
    """An ingest that writes its log only while somebody waits for it; notes the most items held at once."""

    most_waiting = 0
    gate: asyncio.Event

    async def _append(self, events: list[StreamEvent]) -> None:
        await self.gate.wait()
        await super()._append(events)

    async def at_most(self, count: int, origin: Origin) -> bool:
        self.most_waiting = max(self.most_waiting, self.waiting)
        if self.waiting > count:
            self.gate.set()
        try:
            return await super().at_most(count, origin)
        finally:
            self.gate.clear()


@pytest.mark.parametrize(
    ("number", "pad", "most"), [(5000, 0, MAX_UNSETTLED_ITEMS + 128), (30, 2**20, MAX_UNSETTLED_BYTES // 2**20 + 2)]
)
async def test_little_of_a_large_spool_waits_for_the_disk(
    tmp_path: Path, store: MemoryStore, number: int, pad: int, most: int
) -> None:
    ingest = WaitedFor(store, Translator(seeded_identity(1), means=Means(hold_s=0.2)), seeded_identity(1).now_ms)
    ingest.gate = asyncio.Event()
    hooks = bus_events(number)
    for hook in hooks:
        hook.input["event"]["pad"] = "x" * pad
    spool(tmp_path, dead_pid(), hooks=hooks)
    assert await take_left(tmp_path, ingest) == number == len(await types(store))
    assert ingest.most_waiting <= most
    await ingest.close()


async def test_foreign_files_are_left_alone(tmp_path: Path, store: MemoryStore, ingest: Ingest) -> None:
    outside = tmp_path / "outside.jsonl"
    outside.write_text("precious\n")
    directory = tmp_path / "spool"
    directory.mkdir()
    (directory / f"{BOOT}-{INSTANCE}.jsonl").symlink_to(outside)
    (directory / "notes.jsonl").write_text("not ours\n")
    assert await take_left(directory, ingest) == 0
    assert outside.read_text() == "precious\n" and (directory / "notes.jsonl").exists()


async def test_a_spool_of_an_excluded_project_is_deleted_unread(tmp_path: Path, store: MemoryStore) -> None:
    translator = Translator(seeded_identity(1), means=Means(hold_s=0.2))
    ingest = Ingest(store, translator, seeded_identity(1).now_ms, exclude=[Path("/home/ada")])
    path = spool(tmp_path, dead_pid())
    assert await take_left(tmp_path, ingest) == 0
    assert not path.exists() and store.head == NOTHING and ingest.excluded > 0
    await ingest.close()


async def test_one_that_its_shim_left_is_taken_while_its_process_lives(
    tmp_path: Path, store: MemoryStore, ingest: Ingest
) -> None:
    left = spool(tmp_path, os.getpid(), name=f"{BOOT}-{INSTANCE}.left0.jsonl")
    held = spool(tmp_path, os.getpid())
    assert await take_left(tmp_path, ingest) > 0
    assert held.exists() and not left.exists() and len(await types(store)) == 6


def items(name: str = "chat") -> list[HookItem]:
    return [item for _, item in recording(name)]


def take(ingest: Ingest, link: FakeLink, hooks: list[HookItem], first: int = 1) -> None:
    ingest.take(Origin(link.boot_id, link.instance), first, hooks, link)


async def test_items_are_finished_only_when_durable(store: GatedStore, ingest: Ingest) -> None:
    link, hooks = FakeLink(), items()
    store.gate.clear()
    take(ingest, link, hooks)
    for _ in range(20):
        await asyncio.sleep(0)
    assert link.finished == set() and ingest.waiting == len(hooks)
    store.gate.set()
    await link.until(range(1, len(hooks) + 1))
    assert ingest.waiting == 0
    assert (await types(store))[-1] == "turn.ended"


async def test_an_item_sent_again_while_it_is_on_its_way_is_taken_once(store: GatedStore, ingest: Ingest) -> None:
    first, second, hooks = FakeLink(), FakeLink(), items()
    store.gate.clear()
    take(ingest, first, hooks)
    take(ingest, second, hooks)
    store.gate.set()
    await first.until(range(1, len(hooks) + 1))
    await second.until(range(1, len(hooks) + 1))
    assert len(await types(store)) == 6 and ingest.duplicates == 0


async def test_an_item_that_the_translator_failed_at_is_taken_when_it_is_sent_again(
    store: GatedStore, ingest: Ingest, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, hooks = FakeLink(), FakeLink(), items()
    feed, fed = Translator.feed, 0

    def failing(translator: Translator, *arguments: Any) -> None:
        nonlocal fed
        fed += 1
        if fed == 3:
            raise KeyError("a fault of the translator")
        feed(translator, *arguments)

    monkeypatch.setattr(Translator, "feed", failing)
    with pytest.raises(KeyError):
        take(ingest, first, hooks)
    take(ingest, second, hooks)
    await second.until(range(1, len(hooks) + 1))
    assert len(await types(store)) == 6 and ingest.waiting == 0


async def test_a_log_that_fails_finishes_nothing_more(store: GatedStore, ingest: Ingest) -> None:
    link, hooks = FakeLink(), items()
    store.fault = StoreFailed("the disk is full")
    take(ingest, link, hooks)
    async with asyncio.timeout(10):
        assert await asyncio.shield(ingest.failed) is store.fault
    take(ingest, link, items("reasoning"), first=1000)
    for _ in range(20):
        await asyncio.sleep(0)
    assert link.finished == set()


async def test_an_excluded_project_is_not_recorded(store: GatedStore, ingest: Ingest) -> None:
    link, hooks = FakeLink(directory="/home/ada/secret/below"), items()
    take(ingest, link, hooks)
    assert link.finished == set(range(1, len(hooks) + 1))
    assert await types(store) == [] and ingest.excluded == len(hooks)


async def test_an_excluded_project_is_known_through_a_link_as_well(tmp_path: Path, store: GatedStore) -> None:
    (tmp_path / "secret" / "below").mkdir(parents=True)
    (tmp_path / "way").symlink_to(tmp_path / "secret")
    for excluded, given in (("secret", "way/below"), ("way", "secret"), ("way", "way")):
        ingest = Ingest(store, Translator(seeded_identity(1)), seeded_identity(1).now_ms, exclude=[tmp_path / excluded])
        assert ingest.excludes(str(tmp_path / given)) and not ingest.excludes(str(tmp_path / "secretly"))
        await ingest.close()


async def test_opencode_is_asked_who_an_unknown_session_is(store: GatedStore, ingest: Ingest) -> None:
    link = FakeLink()
    link.answers["session.get"] = lambda args: {"id": args["path"]["id"], "title": "asked"}
    ingest.opened(link)
    hooks = [item for item in items() if item.hook == "chat.message"]
    take(ingest, link, hooks)
    await link.until([1])
    assert await types(store) == ["lifecycle.session.resumed", "human.input"]
    assert link.calls[0][0] == "session.get"


async def test_a_session_that_is_gone_ends_once_a_link_of_its_directory_delivers(
    store: GatedStore, ingest: Ingest
) -> None:
    old, hooks = FakeLink(directory="/home/dev/project"), items()
    ingest.opened(old)
    take(ingest, old, hooks)
    await old.until(range(1, len(hooks) + 1))
    ingest.closed(old)
    new = FakeLink(boot_id="c" * 32, directory="/home/dev/project")
    new.answers["session.list"] = []
    new.answers["session.get"] = CallError("opencode", "not found", 404)
    ingest.opened(new)
    take(ingest, new, items("reasoning")[:3])
    async with asyncio.timeout(10):
        async for record in store.subscribe():
            if record.event.type == "lifecycle.session.ended":
                break
    assert record.event.payload["reason"] == "gone"
    assert record.event.payload["session"] == hooks[0].input["event"]["properties"]["sessionID"]


@pytest.mark.parametrize(
    ("pid", "end", "lost"),
    [(dead_pid, "", 0), (dead_pid, "12", 12), (os.getpid, "7", 7), (os.getpid, "", None), (dead_pid, "x", None)],
)
@pytest.mark.parametrize("where", ["home/spool/", "home."])
async def test_a_mark_becomes_a_gap_once_its_plugin_has_ended(
    tmp_path: Path, ingest: Ingest, store: GatedStore, where: str, pid: Callable[[], int], end: str, lost: int | None
) -> None:
    directory = tmp_path / "home" / "spool"
    directory.mkdir(parents=True)
    mark = tmp_path / f"{where}{BOOT}-{INSTANCE}-{pid()}.lost{end}"
    mark.touch(0o600)
    for _ in range(2):
        await take_marks(directory, ingest)
    gaps = [record.event async for record in store.read_all()]
    told = [(event.type, event.payload["reason"], event.payload["lost"], event.metadata["boot"]) for event in gaps]
    assert told == ([] if lost is None else [("capture.gap", "not_kept", lost, BOOT)])
    assert mark.exists() == (lost is None)


async def test_a_mark_is_a_file_of_ours_of_a_plugin_without_a_link(
    tmp_path: Path, ingest: Ingest, store: GatedStore
) -> None:
    directory = tmp_path / "home" / "spool"
    directory.mkdir(parents=True)
    name = f"{BOOT}-{INSTANCE}-{dead_pid()}.lost3"
    (directory / name).symlink_to(tmp_path)
    await take_marks(directory, ingest)
    (directory / name).unlink()
    (directory / name).touch()
    link = FakeLink(BOOT, INSTANCE)
    ingest.opened(link)
    await take_marks(directory, ingest)
    assert store.head == NOTHING
    ingest.closed(link)
    store.fault = StoreFailed("the disk is full")
    await take_marks(directory, ingest)
    assert (directory / name).exists(), "the next sidecar records it"
