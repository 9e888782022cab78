"""A suspended sidecar never writes beside another one, and there is always a way to end it.

``tests/torture/test_fencing.py`` has one that wakes up beside its successor, ``tests/streams/test_fencing.py`` the log
alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.opencode.link.frames import HookItem
from sidecar.home import Home, SidecarInfo
from sidecar.link.client import LinkClosed, ShimClient
from sidecar.processes import mark_of
from streams.identity import system_identity
from streams.log.reader import LogReader
from streams.log.verify import Verification
from streams.stores.directory import LOCK
from tests.sidecar.cli.helpers import run, run_process
from tests.sidecar.support import HANG_SECONDS, start, wait_for
from tests.torture.sidecars import shim, text_hook


class Sidecars:
    """A home, and every process that a test started for it."""

    def __init__(self, path: Path) -> None:
        self.home = Home(path)
        self.processes: list[subprocess.Popen[str]] = []

    def start(self) -> subprocess.Popen[str]:
        """Start a sidecar; return when it serves."""
        process = start(self.home)
        self.processes.append(process)
        wait_for(lambda: (info := self.home.read_info()) is not None and info.pid == process.pid, "it serves")
        return process

    def other(self, code: str = "import time; time.sleep(600)") -> subprocess.Popen[str]:
        """Start a process that is no sidecar."""
        process = subprocess.Popen([sys.executable, "-c", code], text=True)
        self.processes.append(process)
        return process

    def stop_and_unlock(self, process: subprocess.Popen[str]) -> None:
        process.send_signal(signal.SIGSTOP)
        (self.home.store_path / LOCK).unlink()
        self.home.lock_path.unlink()

    async def link(self) -> ShimClient:
        return await ShimClient.connect(self.home, identity=shim(1), nonce=system_identity().nonce)

    async def recorded(self) -> Counter[int]:
        """How often each hook is in the log, which must verify."""
        assert [str(finding) async for finding in Verification(self.home.store_path).run()] == []
        reader = LogReader(self.home.store_path)
        events = [record.event async for record in reader.read_all()]
        await reader.close()
        return Counter(e.payload["properties"]["n"] for e in events if e.type == "opencode.torture.note")


@pytest.fixture
def sidecars(tmp_path: Path) -> Iterator[Sidecars]:
    sidecars = Sidecars(tmp_path / "home")
    sidecars.home.create()
    yield sidecars
    for process in sidecars.processes:
        process.kill()
        process.wait()


def hooks(begin: int, end: int) -> list[HookItem]:
    return [text_hook("s", number) for number in range(begin, end)]


async def test_an_unknown_sidecar_keeps_the_log_until_it_ends(sidecars: Sidecars) -> None:
    """Nobody can tell which process to kill, so the next sidecar does not start. The old one is fenced all the same."""
    old = sidecars.start()
    first = await sidecars.link()
    sidecars.stop_and_unlock(old)
    sidecars.home.info_path.unlink()
    await first.send(hooks(0, 5))
    refused = run_process(sidecars.home.path, "serve")
    assert refused.code == 1 and refused.err.endswith("[log-locked]\n")
    old.send_signal(signal.SIGCONT)
    with pytest.raises(LinkClosed):
        await first.drained()
    assert first.acked == 0 and old.wait(HANG_SECONDS) == 1
    await first.close()
    sidecars.start()
    async with await sidecars.link() as second:
        await second.send(hooks(0, 5))
        await second.drained()
    assert run(sidecars.home.path, "stop").code == 0
    assert await sidecars.recorded() == Counter(range(5))


@pytest.mark.parametrize("mark", ["", "1 another process"])
def test_a_process_that_is_not_proved_to_be_the_sidecar_is_not_killed(sidecars: Sidecars, mark: str) -> None:
    other = sidecars.other()
    sidecars.home.write_info(SidecarInfo(other.pid, 9, "b" * 32, "0.1.0", 1, 2**42, mark))
    assert run(sidecars.home.path, "stop").code == 0
    sidecars.start()
    assert other.poll() is None


def test_stop_kills_no_process_that_took_the_pid(sidecars: Sidecars) -> None:
    other = sidecars.other()
    sidecars.home.write_info(SidecarInfo(other.pid, 9, "b" * 32, "0.1.0", 1, 2**42, "another process"))
    with sidecars.home.lock():  # as a sidecar that starts holds it
        assert run(sidecars.home.path, "stop").code == 0
    assert other.poll() is None


@pytest.mark.parametrize("unlocked", [False, True])
def test_status_says_that_a_sidecar_is_suspended_and_stop_ends_it(sidecars: Sidecars, unlocked: bool) -> None:
    old = sidecars.start()
    if unlocked:
        sidecars.stop_and_unlock(old)
    else:
        old.send_signal(signal.SIGSTOP)
    status = run(sidecars.home.path, "status")
    told = " ".join(status.out.split())
    assert status.code == 1 and str(old.pid) in told and "`durable-stream stop`" in told
    stopped = run(sidecars.home.path, "stop")
    assert stopped.code == 0 and str(old.pid) in stopped.out
    assert old.wait(HANG_SECONDS) == -signal.SIGKILL


def test_a_sidecar_without_its_lock_exits_by_itself(sidecars: Sidecars) -> None:
    old = sidecars.start()
    (sidecars.home.store_path / LOCK).unlink()
    assert old.wait(HANG_SECONDS) == 1


def test_a_mark_names_one_process(sidecars: Sidecars) -> None:
    other, same = sidecars.other(), os.getpid()
    assert mark_of(same) == mark_of(same) != ""
    assert mark_of(other.pid) not in ("", mark_of(same))
    other.kill()
    wait_for(lambda: mark_of(other.pid) == "", "a zombie does not run")
    other.wait()
    assert mark_of(other.pid) == ""


ONE_THREAD_LEFT = """
import ctypes, pathlib, sys, threading, time
def left():
    while pathlib.Path("/proc/self/stat").exists() and " Z " not in pathlib.Path("/proc/self/stat").read_text():
        time.sleep(0.01)
    pathlib.Path(sys.argv[1]).touch()
    time.sleep(600)
threading.Thread(target=left).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_with_one_thread_left_still_runs(sidecars: Sidecars, tmp_path: Path) -> None:
    """Its main thread is a zombie. The thread may be the log's writer, waiting for the disk after ``kill -9``."""
    left = tmp_path / "left"
    other = sidecars.other(ONE_THREAD_LEFT.replace("sys.argv[1]", repr(str(left))))
    wait_for(left.exists, "only the thread is left")
    assert mark_of(other.pid) != ""
