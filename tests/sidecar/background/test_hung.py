from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from sidecar.background.hosts import hung
from sidecar.background.hosts.hung import Act, Pulse, Sample, judge, look
from sidecar.processes import pid_here

LONG = 400
IDLE, STOPPED = [Sample("S", 7)] * LONG, [Sample("T", 7)] * LONG
BUSY = [Sample("R", 7 + n) for n in range(LONG)]

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what a process does")


def acts(samples: Iterable[Sample], *, was_linked: bool = True) -> list[tuple[int, Act]]:
    """What is done with a process, and at which look, until it is killed."""
    pulse, done = Pulse(), list[tuple[int, Act]]()
    for n, sample in enumerate(samples):
        pulse, act = judge(pulse, sample, was_linked=was_linked)
        if act:
            done.append((n, act))
        if act == "kill":
            break
    return done


@pytest.mark.parametrize("samples", [IDLE, STOPPED, [Sample("T", 7 + n) for n in range(LONG)]])
def test_one_that_makes_no_progress_is_continued_and_then_killed_in_less_than_a_minute(samples: list[Sample]) -> None:
    (at, first), (end, last) = acts(samples)
    assert (first, last) == ("continue", "kill") and at < end < 20


@pytest.mark.parametrize("samples", [BUSY, [Sample("S", n // 5) for n in range(LONG)]], ids=["busy", "slow"])
def test_one_that_makes_progress_is_waited_for(samples: list[Sample]) -> None:
    assert acts(samples) == []


def test_one_that_goes_on_after_it_was_continued_is_left_alone() -> None:
    assert [act for _, act in acts([*STOPPED[:12], *BUSY])] == ["continue"]


def test_one_that_never_linked_is_killed_however_busy() -> None:
    assert [act for _, act in acts(BUSY, was_linked=False)] == ["kill"]
    assert acts(BUSY[:100], was_linked=False) == []


@linux
def test_what_a_process_started_ends_with_it_but_nothing_else(tmp_path: Path) -> None:
    """As in OpenCode, its tool has a session of its own, whose command runs on in the background."""
    (tmp_path / "tool").write_text(
        "sleep 60 & echo $! >> pids; sleep 60 & echo $! >> pids; echo over >> pids; sleep 60; touch late"
    )
    parent = [sys.executable, "-c", "import subprocess; subprocess.run(['sh', 'tool'], start_new_session=True)"]
    with (
        subprocess.Popen(parent, cwd=tmp_path, start_new_session=True) as process,
        subprocess.Popen(["sleep", "60"], start_new_session=True) as other,
    ):
        pids = tmp_path / "pids"
        while not pids.exists() or "over" not in pids.read_text():
            time.sleep(0.01)
        process.send_signal(signal.SIGSTOP)
        assert look(process.pid) is not None
        hung.end(process.pid)
        assert process.wait() == -signal.SIGKILL
        for pid in pids.read_text().split()[:-1]:
            while look(int(pid)) is not None:
                time.sleep(0.01)
        assert other.poll() is None and not (tmp_path / "late").exists()
        other.kill()


@linux
def test_a_pid_is_found_from_outside_of_its_namespace() -> None:
    space = str(Path("/proc/self/ns/pid").readlink())
    assert pid_here(os.getpid(), space) == os.getpid()
    assert pid_here(os.getpid(), "pid:[1]") == 0
    inner = ["unshare", "-rpf", "--mount-proc", "sh", "-c", "readlink /proc/self/ns/pid; sleep 60 & echo $!; wait"]
    if subprocess.run([*inner[:3], "true"], check=False).returncode:
        pytest.skip("this user may make no namespace")
    with subprocess.Popen(inner, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        other, told = process.stdout.readline().strip(), int(process.stdout.readline())
        found = pid_here(told, other)
        assert found != told
        while Path(f"/proc/{found}/comm").read_text().strip() != "sleep":
            time.sleep(0.01)  # it is a copy of the shell until it runs the program
        os.killpg(process.pid, signal.SIGKILL)
