"""``mirror verify`` and ``rebuild``: copies that differ from the log, on purpose or by damage, and bad stores."""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bridge.nats import headers as h
from bridge.nats.jetstream.client_errors import NOTHING_LISTENS
from bridge.nats.jetstream.connection import JetStream
from bridge.nats.jetstream.publishing import publish
from bridge.nats.jetstream.sessions import Sessions
from bridge.nats.jetstream.stream_plan import EVENTS, L0_EVENTS
from bridge.nats.jetstream.streams import StreamMessage, facts
from bridge.nats.jetstream.wire import Message
from bridge.nats.mirror.messages import is_forgotten
from bridge.nats.mirror.place import erase_l0
from sidecar.cli.check.mirror import SHOWN
from sidecar.mirror.verify import Disturbed, MirrorCheck
from streams.identity import system_identity
from streams.log.log import Log
from streams.log.reader import LogReader
from tests.bridge.nats import vectors
from tests.bridge.nats.records import event
from tests.nats_servers import HANG_SECONDS, RealServer, real_server
from tests.sidecar.bad_stores import REFUSED, State, damage_in_database, make_store, snapshot
from tests.sidecar.cli.helpers import command, environment, run
from tests.sidecar.life import end_sidecars
from tests.sidecar.mirror.copies import Copy, shown
from tests.sidecar.support import wait_for
from tests.sidecar.test_bad_stores import BROKEN, is_sentence


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


def test_what_the_log_pruned_is_no_fault_and_is_told_before_it_is_lost(copy: Copy) -> None:
    copy.make().publish()

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


def test_what_was_forgotten_in_the_log_is_found_in_the_copy(copy: Copy) -> None:
    copy.make().publish()
    (stream, *_) = [row["stream_id"] for row in run(copy.home.path, "streams", "--json").objects()]

    async def work(log: Log) -> None:
        await log.forget([stream], at_ms=system_identity().now_ms())

    copy.with_log(work)
    code, found, _ = copy.verify()
    assert code == 1 and {each["kind"] for each in found} >= {"unforgotten"}, shown(found)
    assert len(run(copy.home.path, "mirror", "verify").out.splitlines()) <= 2 * SHOWN + 4
    copy.publish()  # as the next sidecar does: it erases that, and continues
    clean(copy)
    assert copy.rebuild().code == 0
    clean(copy)


def test_what_waits_is_no_fault(copy: Copy) -> None:
    copy.make()
    assert clean(copy)["waiting"] == clean(copy)["records"]
    assert "not mirrored yet" in told(copy, "verify")
    copy.publish()
    assert clean(copy)["waiting"] == 0


def test_a_log_that_is_damaged_does_not_replace_its_copy(copy: Copy) -> None:
    copy.make().publish()
    damage_in_database(copy.home.store_path, 0.5)
    before = copy.messages()
    for arguments in (["rebuild"], ["rebuild", "--yes"]):
        done = run(copy.home.path, "mirror", *arguments)
        assert done.code == 1 and "NATS may have their only copy" in done.err and done.err.count("\n") == 1
    assert run(copy.home.path, "mirror", "verify").code == 1 and copy.messages() == before


def test_where_nothing_differs_that_is_said(copy: Copy) -> None:
    copy.make("chat").publish()
    dry = told(copy, "rebuild")
    assert dry.startswith(
        "the copy already equals the log, so there is nothing to rebuild a rebuild would still remove"
    )
    for _ in range(2):
        done = copy.rebuild()
        assert done.err == "" and done.objects()[0]["done"]["lag"] == 0, done
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
        assert clean(one)["streams"][0]["compared"] < summary["streams"][0]["compared"]


@pytest.fixture
def published(tmp_path: Path, server: RealServer) -> Copy:
    made = Copy(tmp_path / "home", server).make().publish()
    code, found, summary = made.verify()
    assert (code, found) == (0, []), shown(found)
    assert summary["records"] == summary["streams"][0]["compared"] > 40 and summary["streams"][1]["compared"] > 10
    return made


def mine(published: Copy, stream: str = EVENTS) -> list[StreamMessage]:
    return [m for m in published.messages(stream) if m.headers.get(h.LOG) == published.log_id]


def again(found: StreamMessage) -> dict[str, str]:
    """Headers to publish a message a second time."""
    kept = {name: value for name, value in found.headers.items() if not name.startswith("Nats-")}
    return {**kept, h.MESSAGE_ID: f"{found.headers[h.MESSAGE_ID]}:77"}


def mended(published: Copy) -> None:
    """Check that a rebuild restores every message, and only this log's."""
    others = [m for m in published.messages() if f".{published.log_id}." not in m.subject]
    done = published.rebuild()
    assert done.code == 0, done
    code, found, summary = published.verify()
    assert (code, found) == (0, []), shown(found)
    assert summary["waiting"] == 0 and summary["streams"][0]["compared"] == summary["records"]
    left = [m for m in published.messages() if f".{published.log_id}." not in m.subject]
    assert [(m.subject, m.sequence) for m in left] == [(m.subject, m.sequence) for m in others]


def test_records_of_every_kind_and_size_equal_themselves(tmp_path: Path, server: RealServer) -> None:
    """Odd names, bad traces, payloads that become pointers; this server's 8 MiB limit excludes nothing else."""
    odd = "x \r\n\x1b[2J\ud800 修 %_ 👩\u200d💻 .*>"
    step = {"session": odd, "part": odd, "turn": odd, "kind": odd, "tool": odd, "status": "error", "tokens": {odd: 1}}
    more: list[dict[str, Any]] = [
        {"actor": odd, "source": {"agent": odd, "adapter": odd}, "traceparent": odd, "metadata": {"tracestate": odd}},
        {"traceparent": None, "metadata": {"tracestate": "a=b", odd: odd}, "correlation_id": None},
    ]
    made = [event(500 + n, "execution.step", step, **each) for n, each in enumerate(more)]
    made += [event(600 + n, "note", {"session": "ses_a", "CG-Sender": odd, "text": "y" * n}) for n in (1, 9_000_000)]
    pinned = [each for each in vectors.events().values() if not is_forgotten(each)]  # no log takes that
    published = Copy(tmp_path / "home", server).make("chat").add([*pinned, *made]).publish()
    code, found, summary = published.verify()
    assert (code, found) == (0, []), shown(found)
    assert "pointer" in {m.headers[h.FORM] for m in mine(published)} and summary["records"] == len(mine(published))
    mended(published)


def test_half_lost(published: Copy) -> None:
    lost, told = mine(published)[::2], mine(published, L0_EVENTS)[1::3]
    published.delete(EVENTS, *(m.sequence for m in lost))
    published.delete(L0_EVENTS, *(m.sequence for m in told))
    code, found, summary = published.verify()
    assert code == 1
    named = [event for each in found if each["stream"] == EVENTS for event in each["events"]]
    assert named == [m.headers[h.MESSAGE_ID].partition(":")[0] for m in lost]
    assert summary["streams"][1]["differences"] == {"missing": len(told)}
    mended(published)


def test_extra_doubled_and_changed(published: Copy) -> None:
    some, told = mine(published)[5], mine(published, L0_EVENTS)[2]

    async def work(session: JetStream) -> None:
        double = again(some)
        foreign = {**double, h.MESSAGE_ID: "foreign", h.POSITION: "100000"}
        for message in (
            Message(some.subject, double, some.body),
            Message(some.subject, foreign, some.body),
            Message(some.subject, {h.MESSAGE_ID: "bare"}, b"not ours"),
            Message(told.subject, again(told), b"{}"),
        ):
            await publish(session, message)

    published.on_server(work)
    code, found, _ = published.verify()
    assert code == 1 and sorted(each["kind"] for each in found) == ["extra", "extra", "order", "order"], shown(found)
    assert sorted(each["position"] for each in found if each["stream"] == EVENTS) == [-1, 5, 100000]
    # Without the first of the two the second one is still at the wrong place. The first one counts as waiting, because
    # the stream's last message does not say how far the mirror was.
    published.delete(EVENTS, some.sequence)
    assert sorted(each["kind"] for each in published.verify()[1]) == ["extra", "extra", "order", "order"]
    mended(published)


async def test_a_stream_that_is_removed_while_it_is_compared_is_told(
    tmp_path: Path, own: RealServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = await asyncio.to_thread(lambda: Copy(tmp_path / "home", own).make("chat").publish())
    sessions = Sessions(own.ask_options)

    async def removing(session: JetStream, name: str) -> Any:
        found = await facts(session, name)
        await session.api(f"STREAM.DELETE.{name}")
        return found

    monkeypatch.setattr("sidecar.mirror.verify._facts", removing)
    check = MirrorCheck(
        LogReader(published.home.store_path), published.log_id, sessions, now_ms=system_identity().now_ms
    )
    with pytest.raises(Disturbed):
        [found async for found in check.run()]
    await sessions.close()


def test_a_server_that_lost_its_files(tmp_path: Path, own: RealServer) -> None:
    published = Copy(tmp_path / "home", own).make().publish()
    own.kill()
    own.wipe()
    own.start()
    code, _, summary = published.verify()
    assert code == 0 and summary["waiting"] == summary["records"]
    mended(published)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("sound") / "store"
    make_store(store)
    return store


@pytest.mark.parametrize("state", BROKEN)
def test_it_is_refused_in_one_sentence(tmp_path: Path, server: RealServer, sound: Path, state: State) -> None:
    copy = Copy(tmp_path / "home", server)
    copy.configure()
    shutil.rmtree(copy.home.store_path)
    shutil.copytree(sound, copy.home.store_path)
    state(copy.home.store_path)
    before, messages = snapshot(copy.home.store_path), len(copy.messages())
    for arguments in (["verify"], ["rebuild", "--yes"]):
        done = run(copy.home.path, "mirror", *arguments)
        assert is_sentence(done, REFUSED[state]), (arguments, done)
    assert snapshot(copy.home.store_path) == before and len(copy.messages()) == messages


def test_a_home_that_a_sidecar_has_or_that_has_no_log(
    tmp_path: Path, server: RealServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.link.launch.START_SECONDS", 0.5)  # it waits that long for one that never answers
    copy = Copy(tmp_path / "home", server)
    copy.configure()
    for arguments in (["verify"], ["rebuild", "--yes"]):
        assert is_sentence(run(copy.home.path, "mirror", *arguments), "no log exists in .* yet")
    copy.make("chat")
    with copy.home.lock():
        done = run(copy.home.path, "mirror", "rebuild", "--yes")
        assert is_sentence(done, r"another sidecar.* serving this home.*`durable-stream stop`"), done
    assert run(copy.home.path, "mirror", "status").code == 0
    end_sidecars(copy.home)  # the one that waited for the home has it now


@pytest.mark.parametrize("command", [["mirror", "verify"], ["mirror", "rebuild"]])
def test_where_there_is_no_server_it_is_said_what_to_do(tmp_path: Path, server: RealServer, command: list[str]) -> None:
    copy = Copy(tmp_path / "home", server).make("chat")
    for config, wanted in (
        ("", r"NATS is off in .*; set `mode` to "),
        (
            '[nats]\nmode = "embedded"\n',
            r"runs with the sidecar, which is not running; start a sidecar with `durable-stream serve`",
        ),
        (
            '[nats]\nmode = "external"\nservers = ["nats://ada:geheim@127.0.0.1:1"]\n',
            rf"127\.0\.0\.1:1: {NOTHING_LISTENS}",
        ),
        (f'[nats]\nmode = "external"\nservers = ["nats://127.0.0.1:{server.port}"]\n', "nats-login-refused"),
    ):
        copy.home.config_path.write_text(config)
        done = run(copy.home.path, *command)
        assert is_sentence(done, wanted) and "geheim" not in done.err, done
    assert re.search(r"^nats +off; set mode", run(copy.home.path, "mirror", "status").out) is None
    copy.home.config_path.write_text("")
    assert re.search(r"^nats +off; set `mode`", run(copy.home.path, "mirror", "status").out)
