"""Real processes for tests of the sidecar's life: shims in Node and Bun, sidecars with a faked version."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sidecar.home import Home
from streams.log.reader import LogReader
from tests.sidecar.cli.helpers import environment, run
from tests.sidecar.support import HANG_SECONDS, REPOSITORY, wait_for

DRIVER = Path(__file__).with_name("shim_driver.mjs")
SHIM = REPOSITORY / "plugin-shim" / "src" / "plugin.js"
BUN = REPOSITORY / ".cache/opencode/node_modules"
RUNTIMES = ("node", "bun")
LISTING_S = 0.1
"""Between two listings of all processes: each takes a tenth of that."""
COMMAND = (sys.executable, "-m", "sidecar.cli")

_PRETEND = "; ".join(  # one line, for `ps` to show
    [
        "import sys, sidecar.version, bridge.opencode.link.frames",
        "sidecar.version.VERSION, bridge.opencode.link.frames.PROTOCOL = sys.argv.pop(1), int(sys.argv.pop(1))",
        "from sidecar.cli import main",
        "main()",
    ]
)


def release(version: str, protocol: int = 1) -> tuple[str, ...]:
    """The command of this program, claiming to be another release with another protocol."""
    return (sys.executable, "-c", _PRETEND, version, str(protocol))


def run_as(
    command: Sequence[str], home: Home, *arguments: str, user: int | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command, perhaps of another release or as another user, to its end."""
    words = [*as_user(user), *command, "--home", str(home.path), *arguments]
    return subprocess.run(
        words, capture_output=True, text=True, timeout=HANG_SECONDS, check=False, env=environment(), cwd="/"
    )


def start_as(command: Sequence[str], home: Home, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a sidecar of another release and return at once."""
    words = [*command, "--home", str(home.path), "serve", *arguments]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment())
    _started.append((home.path, process))
    return process


def as_user(user: int | None) -> list[str]:
    """The command prefix that runs a program as another user; empty for ``None``. Only root may use it.

    That user may read everywhere, because the interpreter and this checkout often are in root's directory.
    """
    if user is None:
        return []
    may_read = ["--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"]
    return ["setpriv", "--reuid", str(user), "--clear-groups", *may_read]


_started: list[tuple[Path, subprocess.Popen[bytes]]] = []
"""Our own children, for ``end_sidecars`` to wait for."""

_shimmed: set[Path] = set()
"""Homes for which a shim may have started a sidecar that has not yet left a trace there."""


class Shim:
    """A shim in its own process. Any output besides the driver's answers is an error, and raised."""

    def __init__(
        self,
        home: Path,
        *,
        runtime: str = "node",
        command: Sequence[str] = COMMAND,
        user: int | None = None,
        **options: Any,
    ) -> None:
        _shimmed.add(home)
        how = json.dumps({"home": str(home), "command": list(command), **options})
        words = [*as_user(user), *_runtime(runtime), str(DRIVER), str(SHIM), how]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self.process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment(BUN_BE_BUN="1"),
            text=True,
        )

    def tell(self, do: str, **order: Any) -> None:
        """Send a command without waiting for its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **order}) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, int]:
        """Wait until the oldest unanswered command is done, and return the counters."""
        assert self.process.stdout is not None
        hung = threading.Timer(HANG_SECONDS, self.process.kill)
        hung.start()
        line = self.process.stdout.readline()
        hung.cancel()
        if not line:
            self._errors.seek(0)
            raise AssertionError(
                f"the shim ended, or hung for {HANG_SECONDS:g} s: {self._errors.read().decode()[-2000:]}"
            )
        found: dict[str, int] = json.loads(line)
        return found

    def ask(self, do: str, **order: Any) -> dict[str, int]:
        """Send a command, wait until it is done, and return the counters."""
        self.tell(do, **order)
        return self.answer()

    def until(self, counter: str, least: int) -> dict[str, int]:
        """Wait until a counter reaches a value."""
        return self.ask("wait", counter=counter, least=least)

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.end()

    def end(self) -> None:
        """End it as OpenCode would, and check that it printed nothing of ours on stderr."""
        self.process.communicate(timeout=HANG_SECONDS)
        self._errors.seek(0)
        printed = self._errors.read()
        self._errors.close()
        assert printed == b"", printed.decode()


def _runtime(name: str) -> list[str]:
    if name == "node":
        return ["node"]
    # OpenCode is a program compiled with Bun, and runs scripts as Bun does when it is asked to.
    return [str(next(BUN.glob("opencode-*/bin/opencode"))), "run"]


@contextmanager
def shims(count: int, home: Path, **options: Any) -> Iterator[list[Shim]]:
    """``count`` shims, started at once and ended with the block."""
    started = [Shim(home, **options) for _ in range(count)]
    try:
        yield started
    except BaseException:
        for shim in started:
            shim.process.kill()
        raise
    finally:
        for shim in started:
            if not shim.process.stdin.closed:  # type: ignore[union-attr]
                shim.end()


async def recorded(home: Home) -> Counter[int]:
    """How often each of the shims' events is in the log, by its number."""
    found: Counter[int] = Counter()
    reader = LogReader(home.store_path)
    async for record in reader.read_all():
        if record.event.type == "opencode.life.tick":
            found[record.event.payload["properties"]["n"]] += 1
    await reader.close()
    return found


def sidecars(home: Home) -> dict[int, str]:
    """All live processes that serve ``home``, by pid, with their command lines; also losers of the race."""
    listing = subprocess.run(
        ["ps", "-ww", "-A", "-o", "pid=,stat=,command="], capture_output=True, text=True, check=True
    ).stdout
    found = {}
    for line in listing.splitlines():
        pid, state, command = line.split(None, 2)
        if f"--home {home.path} serve" in command and not state.startswith("Z"):
            found[int(pid)] = command
    return found


def wait_for_sidecars(home: Home, count: int) -> None:
    """Wait until ``count`` processes serve ``home``."""
    wait_for(lambda: len(sidecars(home)) == count, f"{count} processes serve {home.path}", every_s=LISTING_S)


def end_sidecars(home: Home) -> None:
    """Kill all processes that serve ``home`` and wait until none is left."""

    def gone() -> bool:
        left = sidecars(home)
        for pid in left:
            kill(pid)
        return not left

    ours = [path for path, _ in _started]
    if not (home.lock_path.exists() or home.path in _shimmed or home.path in ours):
        return  # a listing of all processes takes longer than most tests
    wait_for(gone, f"no sidecar serves {home.path}", every_s=LISTING_S)
    for path, process in _started:
        if path == home.path:
            process.wait(HANG_SECONDS)


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to a process, which may already have ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def logged(home: Home) -> str:
    """The log of the sidecars of ``home``, oldest first."""
    older = sorted(home.path.glob("sidecar.log.*"), reverse=True)
    return "".join(path.read_text() for path in [*older, home.log_path] if path.exists())


def status(home: Home) -> Mapping[str, Any]:
    """The output of ``durable-stream status --json``."""
    return run(home.path, "status", "--json").objects()[0]
