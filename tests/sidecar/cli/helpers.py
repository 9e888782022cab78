"""A small log made of real recordings, and running the command line on it."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
from asyncio import _get_running_loop
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from typer.main import get_command

from bridge.opencode.capture.translate import Origin, Token, Translator
from bridge.opencode.link.frames import HookItem
from sidecar.cli.app import build, named
from streams.event import StreamEvent
from streams.identity import seeded_identity
from streams.log.log import Log

ROOT = Path(__file__).parents[3]
RECORDINGS = ROOT / "tests" / "recordings"
LIMIT_SECONDS = 120.0


@dataclass(frozen=True)
class Done:
    """A finished command."""

    code: int
    out: str
    err: str

    def objects(self) -> list[dict[str, Any]]:
        """The objects that ``--json`` printed, one a line."""
        return [json.loads(line) for line in self.out.splitlines()]

    def rows(self) -> list[list[str]]:
        """Tab-separated lines."""
        return [line.split("\t") for line in self.out.splitlines()]


def command(home: Path, *arguments: str) -> list[str]:
    """The command line of a ``durable-stream`` command."""
    return [sys.executable, "-m", "sidecar.cli", "--home", str(home), *arguments]


def environment(**more: str) -> dict[str, str]:
    """Our environment without the user's settings; this checkout is importable from any directory."""
    # A size in the environment would win over the terminal's own.
    ours = ("DURABLE_", "XDG_", "COLUMNS", "LINES")
    # Those that every test process sets for itself.
    own = ("XDG_CONFIG_HOME", "XDG_STATE_HOME")
    kept = {name: value for name, value in os.environ.items() if name in own or not name.startswith(ours)}
    return {**kept, "PYTHONPATH": str(ROOT), "TZ": "UTC", **more}


MAY_REMOVE = 'link.scripts_may = ["drop", "forget", "prune", "rebuild"]\n'
"""The line of ``config.toml`` for tests, which have no terminal, that do what needs a person."""


def run(home: Path, *arguments: str, **environ: str) -> Done:
    """Run a command in this process, ten times as fast as in a separate one."""
    words = ["--home", str(home), *arguments]
    invoke = partial(CliRunner().invoke, _command(named(words)), words, prog_name="durable-stream", env=environ)
    if _get_running_loop() is None:
        done = invoke()
    else:  # a command has an event loop of its own
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(invoke).result()
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return Done(done.exit_code, done.stdout, done.stderr)


@cache
def _command(name: str | None) -> Any:
    return get_command(build(name))


def run_process(home: Path, *arguments: str, cwd: Path | None = None, **environ: str) -> Done:
    """Run a command as a user does, with stdout and stderr in pipes."""
    done = subprocess.run(
        command(home, *arguments),
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        cwd=cwd or ROOT,
        env=environment(**environ),
        stdin=subprocess.DEVNULL,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Done(done.returncode, done.stdout, done.stderr)


def run_and_stop(home: Path, *arguments: str) -> Done:
    """Run a command that changes the log, then stop the sidecar that it started."""
    done = run(home, *arguments)
    assert run(home, "stop").code == 0
    return done


def events_of(name: str, translator: Translator) -> list[StreamEvent]:
    """The events that the translator makes from one recording."""
    content = (RECORDINGS / f"{name}.jsonl").read_bytes()
    origin = Origin(sha256(content).hexdigest(), "play")
    made: list[StreamEvent] = []
    for number, line in enumerate(content.splitlines(), 1):
        item = json.loads(line)
        if item["hook"].startswith("__"):
            continue
        hook = HookItem(item["hook"], item["t"], item.get("input"), item.get("output"))
        translator.feed(Token(origin, number), hook, number / 1000)
        drained = translator.drain()
        for session, _ in drained.asks:
            translator.answer(session, None, number / 1000)
        made += drained.events
    translator.tick(1e9)
    return made + translator.drain().events


async def append(store: Path, batches: Iterable[Sequence[StreamEvent]]) -> None:
    """Write batches to the log in ``store``, like a sidecar that runs and stops."""
    log = await Log.open(store, seeded_identity(1))
    for batch in batches:
        if batch:
            await log.append(batch, on_known="keep_first")
    await log.close()


def make_home(home: Path, *recordings: str) -> Path:
    """Make a home whose log contains these recordings, one batch an event."""
    home.mkdir(mode=0o700)
    translator = Translator(seeded_identity(2))
    made = [[event] for name in recordings for event in events_of(name, translator)]
    asyncio.run(append(home / "store", made))
    return home


def damage(home: Path, position: int) -> None:
    """Change a stored record, so that its checksum is wrong. No sidecar may run."""
    with closing(sqlite3.connect(home / "store" / "log.db")) as database, database:
        (event,) = database.execute("SELECT event FROM records WHERE position = ?", [position]).fetchone()
        changed = event.replace(b'"schema_version":1', b'"schema_version":2')
        assert changed != event
        database.execute("UPDATE records SET event = ? WHERE position = ?", [changed, position])
