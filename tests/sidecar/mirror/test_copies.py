"""``mirror verify`` and ``rebuild`` if log and copy differ on purpose, or a rebuild does not finish."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bridge.nats import headers as h
from bridge.nats.jetstream.stream_plan import EVENTS, L0_EVENTS
from bridge.nats.mirror.surveying import erase_l0
from sidecar.cli.check import mirror
from sidecar.cli.check.mirror import SHOWN
from sidecar.home import Home, SidecarInfo
from streams.identity import system_identity
from streams.log.log import Log
from tests.nats_servers import HANG_SECONDS, RealServer, real_server
from tests.sidecar.cli.helpers import command, environment, run
from tests.sidecar.life import end_sidecars
from tests.sidecar.mirror.copies import Copy, shown
from tests.sidecar.support import wait_for

RUNNING = SidecarInfo(pid=1, port=1, boot="b", version="0.1.0", protocol=1, started_ms=1)


@pytest.fixture
def copy(tmp_path: Path, server: RealServer) -> Iterator[Copy]:
    copy = Copy(tmp_path / "home", server)
    yield copy
    end_sidecars(copy.home)


def clean(copy: Copy) -> dict[str, Any]:
    code, found, summary = copy.verify()
    assert (code, found) == (0, []), shown(found)
    return summary


def told(copy: Copy, *arguments: str) -> str:
    done = run(copy.home.path, "mirror", *arguments)
    assert done.code == 0, done
    return " ".join(done.out.split())


@pytest.mark.parametrize("backend", ["jsonl", "sqlite"])
def test_what_the_log_pruned_is_no_fault_and_is_told_before_it_is_lost(copy: Copy, backend: Any) -> None:
    copy.make(backend=backend).publish()

    async def work(log: Log) -> int:
        sizes = await log.sizes()
        await log.prune({sizes[0].stream_id: sizes[0].next_offset}, at_ms=system_identity().now_ms())
        return sizes[0].records

    gone = copy.with_log(work)
    summary = clean(copy)
    assert summary["streams"][0]["pruned"] == gone
    assert (
        f"{summary['streams'][0]['pruned'] + summary['streams'][1]['pruned']} of records that the log has pruned"
        in (told(copy, "verify"))
    )
    before = copy.messages()
    dry = told(copy, "rebuild")
    assert "would be lost, because only the copy has them" in dry and copy.messages() == before
    assert "messages of pruned records are lost" in told(copy, "rebuild", "--yes")
    assert clean(copy)["streams"][0]["pruned"] == 0


async def forgetting(home: Home, method: str) -> dict[str, Any]:
    """The answer of a sidecar whose mirror is erasing forgotten payloads."""
    assert method == "mirror"
    return {"state": "forgetting"}


def test_what_was_forgotten_in_the_log_is_found_in_the_copy(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    copy.make().publish()
    (stream, *_) = [row["stream_id"] for row in run(copy.home.path, "streams", "--json").objects()]

    async def work(log: Log) -> None:
        await log.forget([stream], at_ms=system_identity().now_ms())

    copy.with_log(work)
    code, found, _ = copy.verify()
    assert code == 1 and {each["kind"] for each in found} == {"unforgotten"}, shown(found)
    still_there = sum(each["last"] - each["position"] + 1 for each in found)
    assert len(run(copy.home.path, "mirror", "verify").out.splitlines()) <= SHOWN + 3
    with monkeypatch.context() as while_running:
        while_running.setattr(Home, "running", lambda home: RUNNING)
        while_running.setattr(mirror, "_ask", forgetting)
        code, _, summary = copy.verify()
        assert (code, summary["differences"], summary["forgetting"]) == (0, 0, still_there)
        assert "mirror rebuild" not in told(copy, "verify") and f"{still_there} messages" in told(copy, "verify")
        copy.delete(EVENTS, copy.messages()[-1].sequence)
        done = run(copy.home.path, "mirror", "verify")
        assert done.code == 1 and "1 missing" in done.out and "mirror rebuild" not in done.out
    copy.publish()  # as the next sidecar does: it erases that, and continues
    clean(copy)
    assert copy.rebuild().code == 0
    clean(copy)


def test_what_waits_is_no_fault(copy: Copy) -> None:
    copy.make()
    assert clean(copy)["waiting"] == clean(copy)["records"]
    assert "not mirrored yet" in told(copy, "verify")
    assert "behind the log; published when a sidecar is running last none yet" in told(copy, "status")
    copy.publish()
    records = clean(copy)["records"]
    assert clean(copy)["waiting"] == 0 and f"mirror the whole log, up to position {records - 1}" in told(copy, "status")


def test_a_log_that_is_damaged_does_not_replace_its_copy(copy: Copy) -> None:
    copy.make().publish()
    (segment,) = (copy.home.store_path / "log").glob("*.jsonl")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    before = copy.messages()
    for arguments in (["rebuild"], ["rebuild", "--yes"]):
        done = run(copy.home.path, "mirror", *arguments)
        assert done.code == 1 and "NATS may have their only copy" in done.err and done.err.count("\n") == 1
    assert run(copy.home.path, "mirror", "verify").code == 1 and copy.messages() == before


def test_where_nothing_differs_that_is_said_and_each_rebuild_has_the_next_number(copy: Copy) -> None:
    copy.make("chat").publish()
    dry = told(copy, "rebuild")
    assert dry.startswith(
        "the copy already equals the log, so there is nothing to rebuild a rebuild would still remove"
    )
    for number in (1, 2):
        done = copy.rebuild()
        assert done.err == "" and done.objects()[0]["done"]["rebuild"] == number, done
        assert {m.headers[h.MESSAGE_ID].rpartition(":")[2] for m in copy.messages() if copy.log_id in m.subject} == {
            str(number)
        }
    clean(copy)


def begun(copy: Copy, process: subprocess.Popen[bytes], last: int) -> bool:
    """True if the stream's last message has changed."""
    return process.poll() is not None or max([0, *(m.sequence for m in copy.messages())]) != last


def test_one_that_is_killed_at_any_step_is_run_again(copy: Copy) -> None:
    """Killed once after it began to remove, and once after it began to publish."""
    copy.make("chat", "task_nested", "two_queued", "tool_chain", "permission_child", "compaction_manual").publish()
    whole = len([m for m in copy.messages() if f".{copy.log_id}." in m.subject])
    for _ in range(2):
        process = subprocess.Popen(
            command(copy.home.path, "mirror", "rebuild", "--yes"),
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        wait_for(partial(begun, copy, process, max([0, *(m.sequence for m in copy.messages())])), "it has begun")
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=HANG_SECONDS)
    assert copy.rebuild().code == 0
    assert clean(copy)["streams"][0]["compared"] == whole
    # What was removed and never published again, by the steps of it.
    copy.on_server(lambda session: erase_l0(session, copy.log_id))
    code, found, _ = copy.verify()
    assert code == 1 and {each["stream"] for each in found} == {L0_EVENTS}
    assert copy.rebuild().code == 0
    clean(copy)


def test_another_home_on_the_same_server_is_left_alone(copy: Copy, tmp_path: Path) -> None:
    copy.make().publish()
    other = Copy(tmp_path / "other", copy.server).make().publish()
    theirs = [(m.subject, m.sequence) for m in copy.messages(L0_EVENTS) if m.headers[h.LOG] == other.log_id]
    copy.delete(EVENTS, *[m.sequence for m in copy.messages() if f".{copy.log_id}." in m.subject][:3])
    records = [(m.subject, m.sequence) for m in copy.messages() if f".{other.log_id}." in m.subject]
    assert copy.verify()[0] == 1 and other.verify()[0] == 0
    assert copy.rebuild().code == 0
    clean(copy)
    assert other.verify()[0] == 0
    assert theirs == [(m.subject, m.sequence) for m in copy.messages(L0_EVENTS) if m.headers[h.LOG] == other.log_id]
    assert records == [(m.subject, m.sequence) for m in copy.messages() if f".{other.log_id}." in m.subject]


def test_the_oldest_of_a_full_stream_are_no_fault_and_the_middle_is(tmp_path: Path) -> None:
    with real_server(tmp_path / "small", "2.15") as small:
        one = Copy(tmp_path / "one", small, max_bytes=48_000).make("task_nested", "tool_chain", "chat").publish()
        summary = clean(one)
        assert summary["streams"][0]["expired"] > 10 and summary["streams"][0]["compared"] > 10
        assert "expired" in told(one, "verify")
        middle = one.messages()[4]
        one.delete(EVENTS, middle.sequence)
        _, found, _ = one.verify()
        assert [(each["kind"], str(each["position"])) for each in found] == [("missing", middle.headers[h.POSITION])]
        # Another home's messages push more of the first one's out: that is not a fault either.
        two = Copy(tmp_path / "two", small, max_bytes=48_000).make("task_nested").publish()
        clean(two)
        assert clean(one)["streams"][0]["expired"] > summary["streams"][0]["expired"]
