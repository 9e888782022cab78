"""The product as a user runs it: the plugin file in OpenCode, the command line, the home."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from sidecar.home import Home
from sidecar.link.client import ClientError, ControlClient
from sidecar.private_files import HomeError
from streams.identity import system_identity
from streams.lineage import RETRIED
from tests.at_terminal import at_terminal
from tests.real.model_server import HANG_LIMIT_S
from tests.real.opencode import RealOpenCode
from tests.real.processes import end_marked
from tests.real.recorded import Expectation, Json, differences, missing
from tests.sidecar.cli.helpers import Done, run

SHIM = Path(__file__).resolve().parents[2] / "plugin-shim" / "src" / "plugin.js"
EXECUTABLE = Path(sys.executable).with_name("durable-stream")
PLUGIN = "durable-stream.js"

_READING = ("checkpoints", "intents", "log", "query", "read", "reservations", "status", "streams", "tree", "verify")

_DOES = {"--answer", "--apply", "--cancel", "--discard", "--resume", "--undo"}
_DEEDS = ("forget", "fork", "prune", "spawn")
"""What only a person at a terminal may ask for."""

_OF_THE_LOG = ("checkpoints", "intents", "log", "notices", "query", "streams")
_FRESH_S = 1.0

_POLL_S = 0.05
_REST = 4
"""How much longer than a look the pause after it is: looking takes at most a fifth of a processor from OpenCode."""


class _Look(NamedTuple):
    """What a command printed, when, and of which files."""

    at: float
    files: list[tuple[str, int, int]]
    done: Done


class DurableStream:
    """One home and the commands on it; a context manager that stops the home's sidecar.

    Only plugins start a sidecar, and ``start``.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.terminal: dict[str, str] = dict(os.environ)
        """The variables of the user's terminal, in which commands run that start something."""
        self._looks: dict[tuple[str, ...], _Look] = {}

    def __enter__(self) -> DurableStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        # A client's end may be followed by another headless OpenCode, which the sidecar started to deliver a message.
        end_marked("DURABLE_STREAM_HOME", str(self.home))

    def plugin(self, before: str = "", around: str = "", command: Path = EXECUTABLE, **more: Any) -> str:
        """The text of the plugin file, as ``durable-stream install`` writes it.

        ``before`` runs first; ``around`` is a JavaScript function that turns the plugin into the one that
        OpenCode gets; ``command`` starts a sidecar; ``more`` are options of the plugin.
        """
        options = json.dumps({"command": [str(command)], "home": str(self.home), **more})
        made = f"({around})(create({options}))" if around else f"plugin({options}, import.meta.url)"
        return f"import {{ create, plugin }} from {json.dumps(str(SHIM))};\n{before}\nexport default {made};\n"

    # The command line

    def cli(self, *arguments: str) -> str:
        """Run ``durable-stream --home … arguments`` and return its stdout.

        What only reads runs in this process, see ``lines``; what may start a sidecar runs in a process of its own.

        Raises:
            RuntimeError: it exited with a code other than 0.
        """
        if arguments[0] in _READING and not _DOES & {*arguments}:
            read = run(self.home, *arguments)
            if read.code:
                raise RuntimeError(f"{arguments} ended with {read.code}:\n{read.out}\n{read.err}")
            return read.out
        done = self._run(*arguments)
        if done.returncode:
            raise RuntimeError(f"{done.args} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def typed(self, text: str, *arguments: str) -> str:
        """What a command prints for a person who types the text when it asks."""
        return self._run(*arguments, typed=text).stdout

    def _run(self, *arguments: str, cwd: Path | None = None, typed: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command as a person does, in the foreground of a terminal."""
        own = {name: value for name, value in self.terminal.items() if not name.startswith("DURABLE_STREAM")}
        command = [str(EXECUTABLE), "--home", str(self.home), *arguments]
        with at_terminal(typed) as options:
            return subprocess.run(
                command,
                env=own,
                cwd=cwd,
                capture_output=True,
                text=True,
                timeout=HANG_LIMIT_S,
                check=False,
                **options,
            )

    def in_project(self, client: RealOpenCode, *arguments: str, path: Sequence[Path] = ()) -> str:
        """What a command prints for the client's user, in the client's project.

        The PATH begins with the client's own directory and those of ``path``.
        """
        places = os.pathsep.join(map(str, (client.binary.parent, *path, os.environ["PATH"])))
        done = subprocess.run(
            [str(EXECUTABLE), "--home", str(self.home), *arguments],
            cwd=client.project,
            env={**client.environment(), "PATH": places},
            capture_output=True,
            text=True,
            timeout=HANG_LIMIT_S,
            check=False,
        )
        return done.stdout

    def lines(self, *arguments: str) -> list[Json]:
        """The objects that a command prints with ``--json``.

        The command runs in this process: tests ask again and again, and a process for each look would slow OpenCode.
        """
        done = self._read(*arguments)
        if done.code:
            raise RuntimeError(f"{arguments} ended with {done.code}:\n{done.out}\n{done.err}")
        return done.objects()

    def log(self, stream: str) -> list[Json]:
        """The records of a stream; none if there is no such stream yet."""
        done = self._read("log", stream)
        if done.code and "stream" not in done.err:
            raise RuntimeError(f"log {stream} ended with {done.code}:\n{done.out}\n{done.err}")
        return done.objects()

    def _read(self, *arguments: str) -> Done:
        """What the command prints; at most a second old if it tells of the log alone, and the log has not changed."""
        now, files = time.monotonic(), self._files()
        known = self._looks.get(arguments)
        if known is not None and known.files == files and now - known.at < _FRESH_S:
            return known.done
        if arguments[0] in _DEEDS:
            told = self._run(*arguments, "--json")
            return Done(told.returncode, told.stdout, told.stderr)
        done = run(self.home, *arguments, "--json")
        if arguments[0] in _OF_THE_LOG:
            self._looks[arguments] = _Look(now, files, done)
        return done

    def _files(self) -> list[tuple[str, int, int]]:
        """The log's files, each with its size and the time of its last change."""
        store = self.home / "store"
        found = [*store.glob("*"), *store.glob("log/*")]
        with suppress(FileNotFoundError):
            return sorted((str(path), (stat := path.stat()).st_size, stat.st_mtime_ns) for path in found)
        return []

    def whole_log(self) -> dict[str, list[Json]]:
        """All records by stream; empty before the first."""
        streams: dict[str, list[Json]] = {}
        for record in self.lines("query"):
            streams.setdefault(record["event"]["stream_id"], []).append(record)
        return streams

    def at_work(self, session: str, what: str) -> Json:
        """The session's row in ``top``, as soon as its field ``what`` says something."""

        def row() -> Json | None:
            rows = (row for state in self.lines("top") for row in state["sessions"])  # none before the log begins
            return next((row for row in rows if row["session"] == session and row[what]), None)

        return dict(wait_until(row, f"{session} in top, with {what}"))

    def status(self) -> Json:
        return dict(self.lines("status")[0])

    def is_read(self) -> bool:
        """Whether the sidecar reads the service of OpenCode 2, and has compared all sessions with it."""
        (found,) = self._read("status").objects()
        states = [service["state"] for service in found.get("services", [])]
        return states == ["read"] and found["not_compared"] == 0

    def doctor(self, directory: Path, *arguments: str) -> dict[str, Json]:
        """The findings of ``doctor`` in a directory, by check, including problems."""
        done = self._run("doctor", "--json", *arguments, cwd=directory)
        return {check["name"]: check for check in map(json.loads, done.stdout.splitlines())}

    def stop(self) -> None:
        """Stop the sidecar and wait until its process is gone."""
        running = self.running()
        self.cli("stop")
        if running is not None:
            wait_until(lambda: not is_alive(running), f"the end of the sidecar {running}")

    def end_with(self, *clients: RealOpenCode) -> None:
        """End OpenCode first, which would restart the sidecar, then the sidecar."""
        for client in clients:
            client.terminate()

        def ended() -> bool:
            self.stop()
            return not self.processes(*clients)

        # One that was about to start when the first was stopped is stopped as well.
        wait_until(ended, "the end of all sidecars")

    # The sidecar's process

    def start(self) -> None:
        """Start a sidecar before any plugin does. A process of its own starts it, so that it is no child of ours."""
        code = (
            "import asyncio, pathlib, sys; from sidecar.home import Home;"
            "from sidecar.link.launch import ensure_running;"
            "asyncio.run(ensure_running(Home(pathlib.Path(sys.argv[1]))))"
        )
        own = {name: value for name, value in os.environ.items() if not name.startswith("DURABLE_STREAM")}
        subprocess.run([sys.executable, "-c", code, str(self.home)], env=own, timeout=HANG_LIMIT_S, check=True)
        self.cli("agents")  # answered when the sidecar is ready

    def running(self) -> int | None:
        """The pid of the live sidecar, from ``sidecar.json``."""
        try:
            pid = int(json.loads((self.home / "sidecar.json").read_text())["pid"])
        except FileNotFoundError:
            return None
        return pid if is_alive(pid) else None

    def processes(self, *clients: RealOpenCode) -> list[int]:
        """The processes started by these OpenCodes that run a sidecar for the home."""
        pids = {pid for client in clients for pid in client.leftovers()}
        return [pid for pid in pids if {"serve", str(self.home)} <= set(command_line(pid))]

    def wait_running(self, killed: Collection[int] = ()) -> int:
        """Wait for a sidecar that is not one of ``killed`` (a signal takes a moment) and return its pid."""
        return int(wait_until(lambda: {self.running() or 0} - {0, *killed}, "a running sidecar").pop())

    def wait_linked(self) -> int:
        """Wait until a plugin is linked to the sidecar, and return the sidecar's pid."""
        return int(wait_until(lambda: asyncio.run(self._linked()), "a link"))

    async def _linked(self) -> int | None:
        # What `durable-stream status` asks, without a process for each look.
        home = Home(self.home)
        try:
            async with await ControlClient.connect(home, version="test", nonce=system_identity().nonce) as client:
                found = await client.request("status")
        except (ClientError, HomeError):
            return None  # it is starting, or ending
        return int(found["sidecar"]["pid"]) if found["links"] else None

    # Comparing

    def assert_recorded(self, plan: Expectation, note: str = "") -> list[Json]:
        """Wait until everything expected is in the log, then assert that it is correct and complete."""
        with suppress(TimeoutError):
            wait_until(lambda: not missing(self.log(plan.root), plan), "what is expected")
        records = self.log(plan.root)
        wrong = differences(records, plan)
        assert not wrong, "\n".join(
            [f"the log of {plan.root} is not what OpenCode tells:", *wrong, note, self._own_log()]
        )
        return records

    def assert_whole(self) -> None:
        """Assert that ``verify`` finds nothing, and that nothing was lost or unknown."""
        self.cli("verify")
        odd = self.lines("query", "--type", "capture.gap", "--type", "opencode.*")
        assert [record for record in odd if record["event"]["type"] != RETRIED] == []

    def report(self) -> str:
        """The newest records and lines of the sidecar's own log, for a test that failed."""
        events = [json.loads(line)["event"] for line in self._read("query").out.splitlines()[-80:]]
        lines = [f"{e['stream_id']} {e['type']} {json.dumps(e['payload'])[:300]}" for e in events]
        return "\n".join([*lines, self._own_log()])

    def _own_log(self) -> str:
        path = self.home / "sidecar.log"
        return path.read_text()[-2000:] if path.exists() else "(no sidecar ever ran)"


def wait_until(condition: Callable[[], Any], what: str, timeout: float = HANG_LIMIT_S) -> Any:
    """Poll ``condition``, which depends on processes and files, and return its first true value.

    Raises:
        TimeoutError: it was never true within ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout
    while True:
        began = time.process_time()
        if value := condition():
            return value
        if time.monotonic() > deadline:
            raise TimeoutError(f"{timeout} s passed without {what}")
        time.sleep(max(_POLL_S, _REST * (time.process_time() - began)))


def command_line(pid: int) -> list[str]:
    """The words of a process's command line; none if it has ended."""
    listed = subprocess.run(
        ["ps", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return listed.stdout.split()


def is_alive(pid: int) -> bool:
    """True if a process runs; a zombie does not."""
    try:
        os.kill(pid, 0)
        stat = Path(f"/proc/{pid}/stat")
        return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
