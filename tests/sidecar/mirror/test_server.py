"""The real embedded server: killed, paused, without its port or its store, and never left behind."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bridge.nats.jetstream import streams as keeping
from bridge.nats.jetstream.bus import JetStreamEventBus
from bridge.nats.jetstream.connection import JetStream
from bridge.nats.jetstream.errors import NatsUnavailable
from bridge.nats.jetstream.options import PullSettings
from bridge.nats.jetstream.publishing import publish
from bridge.nats.jetstream.sessions import Sessions
from bridge.nats.jetstream.stream_plan import StreamDefinition
from bridge.nats.jetstream.wire import Message
from sidecar.config import NatsConfig
from sidecar.mirror.server import process
from sidecar.mirror.server.executable import StartFailed
from sidecar.mirror.server.process import ServerProcess, clear_orphan
from sidecar.mirror.server.server import EmbeddedServer, State, Timing
from sidecar.mirror.settings import FREE_PORT, server_config
from streams.bus.contract import BusError, Delivery, Done, Outcome
from streams.identity import seeded_identity
from streams.system.locks import take
from streams.system.retry import Retry
from tests.nats_servers import HANG_SECONDS, NEWEST, is_root, program, servers_of, until

PROGRAM = program(NEWEST)
KEPT = StreamDefinition("KEPT", ("kept.>",), "limits", "A test's")
QUICK = Timing(start=20, probe=0.1, misses=3, stop=5, restart=Retry(0.02, 0.2))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "nats"
    path.mkdir(mode=0o700)
    return path


@asynccontextmanager
async def embedded(directory: Path, timing: Timing = QUICK, **config: Any) -> AsyncIterator[EmbeddedServer]:
    """A started embedded server; when the block ends, no process is left."""
    server = EmbeddedServer(directory, NatsConfig(mode="embedded", **config), seeded_identity(7).nonce, timing)
    server.start()
    try:
        yield server
    finally:
        await asyncio.wait_for(server.stop(), HANG_SECONDS)
        assert server.state is State.STOPPED and servers_of(directory) == []


async def running(server: EmbeddedServer, *, other_than: int | None = None) -> JetStream:
    """Wait until it runs as a process other than ``other_than``, and connect to it."""
    await until(lambda: server.state is State.RUNNING and server.status()["pid"] != other_than, "the server runs")
    return await JetStream.connect(await server.options())


async def problem(server: EmbeddedServer, words: str) -> None:
    await until(lambda: words in server.problem, f"it says {words!r}, not {server.problem!r}")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_it_runs_closed_to_others_and_ends(directory: Path) -> None:
    async with embedded(directory, executable=PROGRAM) as server:
        session = await running(server)
        status = server.status()
        assert status["state"] == "running" and status["version"].startswith(NEWEST) and status["problem"] == ""
        assert servers_of(directory) == [status["pid"]]
        assert {mode(directory / name) for name in ("server.conf", "server.lock", "server.log")} == {0o600}
        assert {mode(directory / name) for name in ("ports", "store")} == {0o700}
        config = json.loads((directory / "server.conf").read_text())
        token = config["authorization"]["token"]
        command = Path(f"/proc/{status['pid']}/cmdline")
        assert not command.exists() or token.encode() not in command.read_bytes()
        with socket.socket() as elsewhere, pytest.raises(OSError):
            elsewhere.settimeout(2)
            elsewhere.connect((_own_address(), status["port"]))
        await session.send("secret.subject", b"a payload nobody may find in a log")
        await session.api("INFO")  # the server has read it when it answers
        await session.close()
    log = (directory / "server.log").read_text()
    assert "payload nobody" not in log and "secret.subject" not in log and token not in log
    with pytest.raises(NatsUnavailable, match=State.STOPPED.value):
        await server.options()


def _own_address() -> str:
    """An address of this machine other than 127.0.0.1."""
    return "127.0.0.2" if sys.platform == "linux" else socket.gethostbyname(socket.gethostname())


async def test_killed_it_is_started_again_with_its_port_its_messages_and_a_new_token(directory: Path) -> None:
    async with embedded(directory, executable=PROGRAM) as server:
        session = await running(server)
        await keeping.ensure_streams(session, [KEPT])
        for n in range(5):
            await publish(session, Message("kept.x", {"Nats-Msg-Id": str(n)}, b"%d" % n))
        before, old = server.status(), await server.options()
        os.kill(before["pid"], signal.SIGKILL)
        await asyncio.wait_for(session.ended(), HANG_SECONDS)
        await session.close()
        again = await running(server, other_than=before["pid"])
        found = [each.body async for each in keeping.read_back(again, "KEPT")]
        assert found == [b"0", b"1", b"2", b"3", b"4"], "what was confirmed was synced"
        assert server.status()["port"] == before["port"] and server.status()["restarts"] == 1
        await again.close()
        new = await server.options()
        assert new.token != old.token
        with pytest.raises(NatsUnavailable, check=lambda error: error.code == "nats-wrong-server"):
            await JetStream.connect(old)


async def test_it_gets_another_port_when_its_own_was_taken(directory: Path) -> None:
    async with embedded(directory) as server:
        await (await running(server)).close()
        before = server.status()
        os.kill(before["pid"], signal.SIGSTOP)  # held while its port is prepared to be taken
        with socket.socket() as thief:
            thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            os.kill(before["pid"], signal.SIGKILL)
            await until(lambda: _takes(thief, before["port"]), "the port is taken")
            await (await running(server, other_than=before["pid"])).close()
            assert server.status()["port"] != before["port"]


def _takes(thief: socket.socket, port: int) -> bool:
    try:
        thief.bind(("127.0.0.1", port))
    except OSError:
        return False
    thief.listen()
    return True


async def test_a_configured_port_that_is_taken_is_told_and_waited_for(directory: Path) -> None:
    with socket.socket() as thief:
        thief.bind(("127.0.0.1", 0))
        thief.listen()
        port = thief.getsockname()[1]
        waiting = embedded(directory, port=port)
        server = await waiting.__aenter__()
        await problem(
            server, f"port {port} is in use by another program; set another `port` in [nats], or 0 for any free port"
        )
        assert server.state in (State.WAITING, State.STARTING)
    await (await running(server)).close()
    assert server.status()["port"] == port
    await waiting.__aexit__(None, None, None)


async def test_one_that_hangs_is_killed_and_started_again_unless_it_goes_on(directory: Path) -> None:
    async with embedded(directory, replace(QUICK, answer=0.3)) as server:
        session = await running(server)
        pid = server.status()["pid"]
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: server.state is State.UNWELL, "the probe fails")
        os.kill(pid, signal.SIGCONT)
        await until(lambda: server.state is State.RUNNING, "it is well again")
        assert server.status()["pid"] == pid and server.restarts == 0
        await session.close()
        os.kill(pid, signal.SIGSTOP)
        await (await running(server, other_than=pid)).close()
        assert server.restarts == 1 and servers_of(directory) == [server.status()["pid"]]


@pytest.mark.parametrize("damage", ["read_only", "garbage"])
async def test_a_store_that_cannot_be_used_is_told_and_mended(directory: Path, damage: str) -> None:
    store = directory / "store"
    harm, mend = _damages()[damage]
    async with embedded(directory, executable=PROGRAM) as server:
        session = await running(server)
        await keeping.ensure_streams(session, [KEPT])
        await publish(session, Message("kept.x", {}, b"1"))
        await session.close()
    harm(store)
    async with embedded(directory, executable=_without_root_rights(directory)) as server:
        if damage != "garbage":
            await until(lambda: server.problem, "it says why it does not start")
            await until(lambda: server.restarts >= 2, "it is tried again")
            assert "exit code" in server.problem or str(store) in server.problem, server.problem
            mend(store)
        session = await running(server)
        await keeping.ensure_streams(session, [KEPT])
        await publish(session, Message("kept.x", {}, b"2"))
        assert (await keeping.facts(session, "KEPT")).messages >= 1
        await session.close()


def _damages() -> dict[str, tuple[Callable[[Path], object], Callable[[Path], object]]]:
    def scribble(store: Path) -> None:
        files = [path for path in store.rglob("*") if path.is_file()]
        assert files
        for path in files:
            path.write_bytes(os.urandom(64))

    def close(store: Path) -> None:
        for path in [store, *(each for each in store.rglob("*") if each.is_dir())]:
            path.chmod(0o500)

    def open_(store: Path) -> None:
        for path in [store, *(each for each in store.rglob("*") if each.is_dir())]:
            path.chmod(0o700)

    return {"read_only": (close, open_), "garbage": (scribble, lambda store: None)}


def _without_root_rights(directory: Path) -> Path:
    """The program without root's rights, so that file modes count even if the tests run as root."""
    if not is_root():
        return PROGRAM
    wrapper = directory.parent / "nats-server"
    drop = "exec setpriv --bounding-set=-dac_override,-dac_read_search"
    wrapper.write_text(f'#!/bin/sh\n{drop} "{PROGRAM}" "$@"\n')
    wrapper.chmod(0o755)
    return wrapper


# --- orphans ---


def left_behind(directory: Path, *command: str | Path) -> subprocess.Popen[bytes]:
    """A program that was started as the server is, and is running."""
    with (directory / "server.lock").open("ab") as lock:
        assert take(lock.fileno())
        child = [sys.executable, Path(process.__file__).with_name("child.py"), str(os.getpid()), str(lock.fileno())]
        pipe = subprocess.PIPE
        return subprocess.Popen([*child, *command], stdin=pipe, stdout=pipe, pass_fds=(lock.fileno(),))


async def test_one_that_a_dead_sidecar_left_is_ended_first(directory: Path) -> None:
    async with embedded(directory) as server:
        await (await running(server)).close()
    left = left_behind(directory, PROGRAM, "-c", directory / "server.conf")
    try:
        while servers_of(directory) != [left.pid]:  # the lock is held before the program is executed
            await asyncio.sleep(0)
        ended = asyncio.get_running_loop().run_in_executor(None, left.communicate)
        async with embedded(directory) as server:
            await (await running(server)).close()
            await asyncio.wait_for(ended, HANG_SECONDS)
            assert servers_of(directory) == [server.status()["pid"]] and left.pid not in servers_of(directory)
    finally:
        left.kill()


async def test_another_process_of_that_number_is_left_alone(directory: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        for content in (str(other.pid), "1", "-1", "x", ""):
            (directory / "server.lock").write_text(content)
            assert await clear_orphan(directory, 1) is None
        (directory / "server.lock").unlink()
        assert await clear_orphan(directory, 1) is None
        assert other.poll() is None
        other.communicate(b"\n", HANG_SECONDS)
        assert other.returncode == 0


async def test_one_that_does_not_heed_is_killed(directory: Path) -> None:
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); input()"
    left = left_behind(directory, sys.executable, "-c", stubborn)
    left.stdout.readline()  # type: ignore[union-attr]
    assert await clear_orphan(directory, 0.2) == left.pid
    assert left.wait(HANG_SECONDS) == -signal.SIGKILL
    left.communicate()


async def test_no_second_program_runs_beside_one(directory: Path) -> None:
    with left_behind(directory, sys.executable, "-c", "print(1, flush=True); input()") as first:
        first.stdout.readline()  # type: ignore[union-attr]
        with pytest.raises(StartFailed):
            await ServerProcess.start(PROGRAM, directory, "")
        first.communicate(b"\n", HANG_SECONDS)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_it_dies_with_its_parent_at_whatever_time(directory: Path) -> None:
    script = (
        "import asyncio, sys; from pathlib import Path; from sidecar.config import NatsConfig\n"
        "from sidecar.mirror.server.server import EmbeddedServer\n"
        "async def main():\n"
        "    server = EmbeddedServer(Path(sys.argv[1]), NatsConfig(), lambda: 'a' * 64)\n"
        "    server.start(); print(1, flush=True); await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    for pause in (0.0, 0.06, 0.3):
        parent = subprocess.Popen([sys.executable, "-c", script, str(directory)], stdout=subprocess.PIPE)
        parent.stdout.readline()  # type: ignore[union-attr]
        try:
            parent.wait(pause)
        except subprocess.TimeoutExpired:
            parent.kill()
        parent.wait(HANG_SECONDS)
        parent.stdout.close()  # type: ignore[union-attr]
        asyncio.run(until(lambda: servers_of(directory) == [], "no server is left"))
    shutil.rmtree(directory)


@pytest.mark.parametrize("name", ["ports", "server.log", "store", "store/jetstream", "store/jetstream/$G/x"])
async def test_a_server_does_not_start_through_a_link(directory: Path, tmp_path: Path, name: str) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    letter = theirs / "letter.txt"
    letter.write_text("mine")
    link = directory / name
    link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    link.symlink_to(letter if name == "server.log" else theirs)
    config = server_config(directory, NatsConfig(mode="embedded"), token="7e" * 32, port=FREE_PORT)

    with pytest.raises(StartFailed) as refused:
        await (await ServerProcess.start(program("2.15"), directory, config)).end(5)

    assert str(link) in str(refused.value)
    assert [path.name for path in theirs.iterdir()] == ["letter.txt"] and letter.read_text() == "mine"


async def test_the_lock_is_no_link(directory: Path, tmp_path: Path) -> None:
    note = tmp_path / "note"
    note.write_text("1")
    (directory / "server.lock").symlink_to(note)
    with pytest.raises(StartFailed):
        await clear_orphan(directory, 1)
    with pytest.raises(StartFailed):
        await ServerProcess.start(PROGRAM, directory, "")
    assert note.read_text() == "1"


KILLS = 4


async def test_nothing_confirmed_is_lost_doubled_or_out_of_order(tmp_path: Path) -> None:
    config = NatsConfig(mode="embedded", executable=program(NEWEST))
    timing = Timing(probe=0.3, restart=Retry(0.05, 0.2))
    server = EmbeddedServer(tmp_path, config, seeded_identity(3).nonce, timing)
    server.start()
    sessions = Sessions(server.options)
    pull = PullSettings(fetch_timeout_s=1, heartbeat_s=0.2, ack_wait_s=1)
    bus = JetStreamEventBus(sessions, pull)
    handled: dict[int, bytes] = {}
    confirmed: list[int] = []
    """The numbers of the messages on the server, in the order in which they were published."""
    over = asyncio.Event()

    async def handle(delivery: Delivery) -> Outcome:
        handled[delivery.sequence] = delivery.body
        return Done()

    async def publish() -> None:
        while not over.is_set():
            body = b"%d" % (len(confirmed) + 1)
            try:
                confirmed.append(await bus.publish("cmd.p.w.a.run", {"Nats-Msg-Id": body.decode()}, body))
            except BusError:
                await asyncio.sleep(0.02)  # the very same again, until it is confirmed

    async def grown() -> None:
        before = len(confirmed)
        await until(lambda: len(confirmed) >= before + 20, "publishing continues")

    await asyncio.wait_for(sessions.wait(), HANG_SECONDS)
    taking = asyncio.create_task(bus.subscribe("one", ["cmd.>"], handle).run())
    publishing = asyncio.create_task(publish())
    chance = random.Random(1)
    for _ in range(KILLS):
        await grown()
        await asyncio.sleep(chance.random() / 5)
        await until(lambda: server.state is State.RUNNING, "the server runs")
        os.kill(server.status()["pid"], signal.SIGKILL)
    await grown()
    over.set()
    await asyncio.wait_for(publishing, HANG_SECONDS)
    assert confirmed == list(range(1, len(confirmed) + 1))
    await until(lambda: handled == {number: b"%d" % number for number in confirmed}, "all are handled")
    assert server.restarts >= KILLS - 1
    taking.cancel()
    await asyncio.gather(taking, return_exceptions=True)
    await sessions.close()
    await server.stop()
