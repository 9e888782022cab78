"""The life of the sidecar with real processes: one winner, remains of a dead one, an impostor, the end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from bridge.opencode.link.frames import ShimIdentity
from sidecar.care.logs import MAX_BYTES
from sidecar.home import Home, SidecarInfo
from sidecar.link.client import ShimClient
from streams.identity import system_identity
from tests.sidecar.cli.helpers import run
from tests.sidecar.life import (
    COMMAND,
    RUNTIMES,
    kill,
    logged,
    recorded,
    shims,
    sidecars,
    start_as,
    wait_for_sidecars,
)
from tests.sidecar.support import HANG_SECONDS, running, start, wait_for


def leave_quickly(home: Home, seconds: float = 0.3) -> None:
    """Let the home's sidecars exit as soon as they have nothing to do."""
    home.create()
    home.config_path.write_text(f"[link]\nidle_exit_seconds = {seconds}\n")


def identity(pid: int = 7) -> ShimIdentity:
    return ShimIdentity("0.1.0", "ab" * 16, "cd" * 8, pid, "prj", "/home/ada/dir", "/home/ada", "1.18.3", 0)


class TestOneWinner:
    def test_of_many_that_start_at_once_one_serves_and_none_stays_beside_it(self, home: Home, tmp_path: Path) -> None:
        with (tmp_path / "printed").open("w+") as printed:
            home.log_path.write_text("x" * (MAX_BYTES - 6) + "\n")  # it is to be rotated, by the winner alone
            processes = [start(home, "--idle-exit", output=printed) for _ in range(5)]
            winner = running(home)
            losers = [process for process in processes if process.pid != winner.pid]
            assert [loser.wait(HANG_SECONDS) for loser in losers] == [0] * 4
            assert set(sidecars(home)) == {winner.pid} and home.running() == winner
            assert logged(home).count("serving on port") == 1 and len([*home.path.glob("sidecar.log*")]) == 2
            assert run(home.path, "stop").code == 0
            assert [process.wait(HANG_SECONDS) for process in processes] == [0] * 5
            printed.seek(0)
            assert printed.read() == "", "winner and losers are quiet"


class TestWhatADeadOneLeaves:
    @pytest.mark.parametrize("runtime", RUNTIMES)
    async def test_after_kill_9_the_shim_starts_another_and_nothing_is_lost(self, home: Home, runtime: str) -> None:
        with shims(1, home.path, runtime=runtime) as (shim,):
            shim.ask("events", **{"from": 1}, count=10)
            shim.until("acked", 10)
            for life in range(2):
                killed = running(home)
                shim.tell("events", **{"from": 100 * life + 11}, count=100)
                kill(killed.pid)
                shim.answer()
                shim.until("acked", 100 * (life + 1) + 10)
                assert running(home).pid != killed.pid
            wait_for_sidecars(home, 1)
        assert await recorded(home) == dict.fromkeys(range(1, 211), 1)

    async def test_after_a_reboot_another_process_has_the_pid_and_nobody_the_lock(self, home: Home) -> None:
        first = start_as(COMMAND, home)
        info = running(home)
        kill(first.pid)
        first.wait(HANG_SECONDS)
        # A living process with the number of the dead sidecar, and a port where nobody listens.
        home.write_info(SidecarInfo(os.getpid(), info.port, info.boot, info.version, info.protocol, info.started_ms))
        assert home.lock_path.exists() and home.running() is None
        assert run(home.path, "stop").out.startswith("no sidecar is running"), "we are not ended for it"
        with shims(1, home.path) as (shim,):
            shim.ask("events", **{"from": 1}, count=20)
            shim.until("acked", 20)
            assert running(home).pid not in (os.getpid(), first.pid)
        assert await recorded(home) == dict.fromkeys(range(1, 21), 1)


class Impostor:
    """Another program on the sidecar's port that speaks its protocol but does not know the token."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.port = 0
        self._news = threading.Condition()

    def talk(self, connection: ServerConnection) -> None:
        try:
            for message in connection:
                with self._news:
                    self.heard.append(str(message))
                    self._news.notify_all()
                wrong = {"type": "challenge", "protocol": 1, "nonce": "b" * 64, "proof": "c" * 64}
                connection.send(json.dumps(wrong | {"sidecar_version": "0.1.0"}))
        except ConnectionClosed:
            return

    def wait_heard(self, count: int) -> None:
        with self._news:
            assert self._news.wait_for(lambda: len(self.heard) >= count, HANG_SECONDS)

    @contextmanager
    def listening(self) -> Iterator[Impostor]:
        with serve(self.talk, "127.0.0.1", 0) as server:
            self.port = server.socket.getsockname()[1]
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                yield self
            finally:
                server.shutdown()
                thread.join()


class TestAnImpostorOnThePort:
    async def test_a_shim_tells_it_nothing_spools_and_reaches_the_real_one(self, home: Home) -> None:
        home.create()
        home.ensure_token(system_identity().nonce)
        with Impostor().listening() as impostor:
            # It cannot start a sidecar yet: what it does in the meantime is seen.
            home.write_info(SidecarInfo(os.getpid(), impostor.port, "boot", "0.1.0", 1, 0))
            command = home.path / "command"
            with shims(1, home.path, command=[str(command)]) as (shim,):
                shim.ask("events", **{"from": 1}, count=20, text="the user's own words")
                impostor.wait_heard(2)
                shim.until("impostors", 2)
                (spool,) = home.spool_path.iterdir()
                assert len(spool.read_text().splitlines()) == 21
                command.write_text(f'#!/bin/sh\nexec {" ".join(COMMAND)} "$@"\n')
                command.chmod(0o700)
                shim.until("acked", 20)
                assert running(home).port != impostor.port
            heard = [json.loads(message) for message in impostor.heard]
        assert {tuple(frame) for frame in heard} == {("type", "role", "protocol", "nonce")}
        assert len({frame["nonce"] for frame in heard}) == len(heard)
        assert await recorded(home) == dict.fromkeys(range(1, 21), 1)


async def test_stop_names_the_linked_opencode_that_starts_another_sidecar(home: Home) -> None:
    process = start_as(COMMAND, home)
    running(home)
    client = await ShimClient.connect(home, identity=identity(pid=7), nonce=system_identity().nonce)
    stopped = run(home.path, "stop")
    assert stopped.code == 0 and stopped.out == f"stopped the sidecar (pid {process.pid})\n"
    assert "(pid 7)" in stopped.err
    await client.close()


class TestIdleExit:
    async def test_it_stays_while_a_shim_is_linked_and_leaves_after_it(self, home: Home, tmp_path: Path) -> None:
        other = Home(tmp_path / "other")
        for each in (home, other):
            leave_quickly(each)
        linked = start_as(COMMAND, home, "--idle-exit")
        running(home)
        client = await ShimClient.connect(home, identity=identity(), nonce=system_identity().nonce)
        # As long as it takes another to come, be idle and leave.
        assert start_as(COMMAND, other, "--idle-exit").wait(HANG_SECONDS) == 0
        assert linked.poll() is None and client.is_open
        await client.close()
        assert linked.wait(HANG_SECONDS) == 0 and not home.info_path.exists()

    async def test_after_kill_9_of_the_process_that_started_it_it_leaves_by_itself(self, home: Home) -> None:
        leave_quickly(home, 3)  # time for the shim to see that it is there
        with shims(1, home.path) as (shim,):
            shim.ask("events", **{"from": 1}, count=20)
            shim.until("welcomes", 1)
            shim.kill()
        wait_for_sidecars(home, 0)
        assert not home.info_path.exists() and not list(home.spool_path.iterdir())
        assert await recorded(home) == dict.fromkeys(range(1, 21), 1)


class TestItsEnd:
    @pytest.mark.parametrize("how", ["stop", "SIGTERM twice"])
    async def test_under_load_it_ends_cleanly_and_nothing_is_lost(self, home: Home, how: str) -> None:
        # They cannot start a sidecar: only this one runs, and those that the test starts.
        with shims(2, home.path, command=["/no/such/command"], backoffMaxMs=50) as two:
            process = start_as(COMMAND, home)
            running(home)
            for number, shim in enumerate(two):
                shim.until("welcomes", 1)
                shim.tell("events", **{"from": 1000 * number + 1}, count=1000, text="x" * 500)
                shim.tell("wait", counter="acked", least=100)
            if how == "stop":
                assert run(home.path, "stop").out == f"stopped the sidecar (pid {process.pid})\n"
            else:
                for _ in range(2 if how.endswith("twice") else 1):
                    kill(process.pid, signal.Signals[how.split()[0]])
            assert process.wait(HANG_SECONDS) == 0
            assert home.running() is None and not home.info_path.exists() and sidecars(home) == {}
            assert logged(home).endswith("stopped\n")
            before = await recorded(home)
            assert not [n for n, times in before.items() if times > 1]
            start_as(COMMAND, home)
            for shim in two:
                shim.answer()
                shim.answer()
                shim.until("acked", 1000)
        assert await recorded(home) == dict.fromkeys(range(1, 2001), 1)

    def test_a_signal_while_it_opens_a_log_ends_it_before_it_serves(self, home: Home) -> None:
        process = start_as(SLOW, home)
        wait_for(lambda: (home.path / "opening").exists(), "it is opening its log")
        kill(process.pid, signal.SIGINT)
        kill(process.pid, signal.SIGTERM)
        (home.path / "go").touch()
        assert process.wait(HANG_SECONDS) == 0
        assert "stopped while starting" in logged(home) and "serving" not in logged(home)
        assert home.running() is None and not home.info_path.exists()
        again = start_as(COMMAND, home)
        assert running(home).pid == again.pid, "the lock is free, and the log's too"

    def test_one_that_starts_while_another_leaves_waits_for_it_and_serves(self, home: Home) -> None:
        leaving = start_as(SLOW, home)
        wait_for(lambda: (home.path / "opening").exists(), "it holds the lock")
        next_one = start_as(COMMAND, home, "--idle-exit")
        wait_for(lambda: _has_open(next_one.pid, home.lock_path), "it looks at the lock")
        wait_for(lambda: not _has_open(next_one.pid, home.lock_path), "which is taken")
        wait_for(lambda: _has_open(next_one.pid, home.lock_path), "and looks again")
        kill(leaving.pid, signal.SIGTERM)
        (home.path / "go").touch()
        assert leaving.wait(HANG_SECONDS) == 0
        assert running(home).pid == next_one.pid

    def test_a_taken_port_is_told_and_leaves_nothing(self, home: Home) -> None:
        home.create()
        with socket.create_server(("127.0.0.1", 0)) as taken:
            home.config_path.write_text(f"[link]\nport = {taken.getsockname()[1]}\n")
            failed = run(home.path, "serve")
        assert failed.code == 1 and failed.err.count("\n") == 1 and "is in use; another" in failed.err
        assert "could not serve" in logged(home) and not home.info_path.exists()


def _has_open(pid: int, path: Path) -> bool:
    """True if a process has a file open now."""
    if sys.platform != "linux":
        found = subprocess.run(["lsof", "-a", "-p", str(pid), str(path)], capture_output=True, check=False)
        return found.returncode == 0
    try:
        return any(entry.readlink() == path for entry in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False  # a descriptor was closed while we looked


SLOW = (
    sys.executable,
    "-c",
    "; ".join(
        [
            "import sys, time, pathlib",
            "import streams.log.log",
            "real, home = streams.log.log.located, pathlib.Path(sys.argv[2])",
            "wait = lambda: [time.sleep(0.01) for _ in iter((home / 'go').exists, True)]",
            "slow = lambda *a, **k: ((home / 'opening').touch(), wait(), real(*a, **k))[2]",
            "streams.log.log.located = slow",
            "from sidecar.cli import main",
            "main()",
        ]
    ),
)
"""A sidecar whose log takes as long to open as until the file ``go`` is in its home; it makes ``opening`` then."""
