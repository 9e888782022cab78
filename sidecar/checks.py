"""What ``doctor`` looks at, and ``status`` in part. Everything here only reads, and answers in bounded time."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import stat
import subprocess
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from sidecar.home import Home, HomeError
from sidecar.installer import Installed, Target, read_plugin
from sidecar.version import VERSION
from streams.errors import StreamError
from streams.query import Filter, describe_span
from streams.store import NOTHING
from streams.stores.jsonl_reader import JsonlReader

Level = Literal["ok", "note", "problem"]

KNOWN_OPENCODE = (1, 18)
"""The release of OpenCode that was measured; others are noted, not refused."""

ANSWER_SECONDS = 5.0
LOW_SPACE_BYTES = 200 * 1024 * 1024
BACKLOG_BYTES = 64 * 1024 * 1024
TAIL_RECORDS = 2000


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at: what was found, and what to do about it if anything."""

    name: str
    level: Level
    text: str
    hint: str = ""

    def as_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return asdict(self)


# --- shared by status and doctor ---


class SidecarSilent(Exception):
    """The running sidecar cannot be asked; the text says why."""


async def ask_sidecar(home: Home, method: str) -> dict[str, Any]:
    """One request over a proved link.

    Raises:
        SidecarSilent: no link, no answer in time, or a refusal.
    """
    from bridge.opencode.link import RequestError
    from sidecar.client import ClientError, ControlClient
    from streams.identity import system_identity

    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            async with await ControlClient.connect(home, version=VERSION, nonce=system_identity().nonce) as client:
                answer = await client.request(method)
    except TimeoutError:
        raise SidecarSilent(f"no answer within {ANSWER_SECONDS:g} s; stop it with `durable-stream stop`") from None
    except (ClientError, HomeError, RequestError) as error:
        raise SidecarSilent(str(error)) from None
    if not isinstance(answer, dict):
        raise SidecarSilent("its answer is no object; stop it with `durable-stream stop` and upgrade")
    return answer


def spool_size(home: Home) -> dict[str, int]:
    """Files and bytes that shims wrote and no sidecar has taken yet."""
    files = list(home.spool_path.glob("*.jsonl")) if home.spool_path.is_dir() else []
    return {"files": len(files), "bytes": sum(file.stat().st_size for file in files if file.is_file())}


def torn_files(store: Path) -> list[Path]:
    """Incomplete tails that openings set aside, oldest first."""
    torn = store / "torn"
    return sorted(torn.glob("*.bin"), key=lambda file: file.stat().st_mtime_ns) if torn.is_dir() else []


def counted(number: int, noun: str) -> str:
    """``1 file``, ``2 files``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


# --- doctor ---


async def diagnose(home: Home, command: Sequence[str]) -> AsyncIterator[Check]:
    """Every check in turn. ``command`` is how this program is started."""
    yield await asyncio.to_thread(check_opencode)
    for check in await asyncio.to_thread(check_plugins, home, command):
        yield check
    for check in check_home(home):
        yield check
    yield check_config(home)
    yield await check_sidecar(home)
    async for check in check_log(home):
        yield check
    yield check_spool(home)
    yield check_space(home)


def quick_checks(home: Home) -> list[Check]:
    """What could keep a session from being recorded and costs nothing to look at: for ``status``."""
    return [*check_home(home), check_config(home), *check_plugin_files(home), check_space(home)]


def check_plugin_files(home: Home) -> list[Check]:
    """Whether a plugin is installed and what it names is there; nothing is run."""
    plugins = [read_plugin(target.plugin) for target in (Target.everywhere(), Target.project(Path.cwd()))]
    found = [plugin for plugin in plugins if plugin is not None]
    if not found:
        hint = "run `durable-stream install`, then restart OpenCode"
        return [Check("plugin", "note", "no plugin is installed: OpenCode's sessions are not recorded", hint)]
    return [
        Check("plugin", "problem", f"the plugin names {path}, which is not there", "run `durable-stream install` again")
        for plugin in found
        for path in (plugin.shim, *plugin.command[:1])
        if not Path(path).is_file()
    ]


def check_opencode() -> Check:
    """OpenCode on the PATH, and its version."""
    path = shutil.which("opencode")
    if path is None:
        hint = "install it, or put its directory on the PATH; the plugin also works with an IDE's own copy"
        return Check("opencode", "note", "not on the PATH", hint)
    version = _output_of([path, "--version"])
    numbers = re.search(r"(\d+)\.(\d+)\.\d+", version or "")
    if numbers is None:
        return Check("opencode", "note", f"{path} does not say its version", "run: opencode --version")
    if (int(numbers[1]), int(numbers[2])) != KNOWN_OPENCODE:
        known = ".".join(map(str, KNOWN_OPENCODE))
        hint = f"made for {known}.x; what a newer one sends is kept, what it changes may be missed"
        return Check("opencode", "note", f"{numbers[0]} at {path}", hint)
    return Check("opencode", "ok", f"{numbers[0]} at {path}")


def check_plugins(home: Home, command: Sequence[str]) -> list[Check]:
    """The plugin files for every project and for the current directory's, and whether what they name is there."""
    targets = [Target.everywhere(), Target.project(Path.cwd())]
    found = [(target, plugin) for target in targets if (plugin := read_plugin(target.plugin)) is not None]
    if not found:
        hint = "run `durable-stream install`, then restart OpenCode"
        return [Check("plugin", "problem", "not installed: OpenCode's sessions are not recorded", hint)]
    checks = [_check_plugin(home, target, plugin) for target, plugin in found]
    if len(found) > 1:
        text = f"both {found[0][0].plugin} and {found[1][0].plugin} are loaded"
        hint = "events are recorded once all the same; `durable-stream uninstall --project .` removes the second"
        checks.append(Check("plugin", "note", text, hint))
    if not any(list(plugin.command) == list(command) for _, plugin in found):
        hint = "run `durable-stream install` with the copy that should serve"
        checks.append(Check("plugin", "note", f"it starts another copy than this one: {found[0][1].command[:1]}", hint))
    return checks


def _check_plugin(home: Home, target: Target, plugin: Installed) -> Check:
    again = "run `durable-stream install" + (" --project .`" if target.scope == "project" else "`") + " again"
    if not plugin.command:
        return Check("plugin", "problem", f"{target.plugin} was changed and cannot be read", again)
    for what, path in (("shim", plugin.shim), ("executable", plugin.command[0])):
        if not Path(path).is_file():
            return Check("plugin", "problem", f"{target.plugin} names {path} ({what}), which is not there", again)
    if _output_of([*plugin.command, "--version"]) is None:
        return Check("plugin", "problem", f"{' '.join(plugin.command)} cannot be run", again)
    if plugin.home != str(home.path):
        hint = f"look there with: durable-stream --home {plugin.home} doctor"
        return Check("plugin", "note", f"{target.plugin} records into another home, {plugin.home}", hint)
    return Check("plugin", "ok", f"{target.plugin} ({target.scope})")


def _output_of(command: Sequence[str]) -> str | None:
    """What a program prints; ``None`` when it cannot be run, fails, or takes too long."""
    try:
        # From the root directory: the plugin starts it from any project, never from this checkout.
        done = subprocess.run(  # noqa: S603 - the command is the one that was installed
            command,
            capture_output=True,
            text=True,
            timeout=ANSWER_SECONDS,
            check=True,
            cwd="/",
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout.strip()


def check_home(home: Home) -> list[Check]:
    """The home's and the token's modes."""
    if not home.path.is_dir():
        hint = "the first start of the sidecar makes it"
        return [Check("home", "note", f"{home.path} does not exist yet", hint)]
    checks = []
    mode = stat.S_IMODE(home.path.stat().st_mode)
    if home.path.stat().st_uid != os.geteuid():
        checks.append(Check("home", "problem", f"{home.path} belongs to another user", "choose another --home"))
    elif mode & 0o077:
        text = f"{home.path} is open to others (mode {mode:o})"
        checks.append(Check("home", "problem", text, f"run: chmod 700 {home.path}"))
    elif locked := [path for path in (home.path, home.store_path, home.spool_path) if not _is_writable(path)]:
        text = f"{locked[0]} cannot be written, so nothing is recorded"
        checks.append(Check("home", "problem", text, f"run: chmod -R u+rwX {home.path}"))
    else:
        checks.append(Check("home", "ok", f"{home.path}, closed to others"))
    if not os.path.lexists(home.token_path):
        checks.append(Check("token", "note", "none yet", "the first start of the sidecar writes it"))
        return checks
    try:
        home.read_token()
        checks.append(Check("token", "ok", "there, and closed to others"))
    except HomeError as error:
        checks.append(Check("token", "problem", f"{error.path}: {error.problem}", error.hint))
    return checks


def _is_writable(path: Path) -> bool:
    return not path.exists() or os.access(path, os.W_OK | os.X_OK)


def check_config(home: Home) -> Check:
    """Whether the configuration can be read."""
    from sidecar.config import ConfigError, load_config

    try:
        load_config(home.config_path)
    except ConfigError as error:
        return Check("config", "problem", str(error), f"correct it; {home.config_path} may also be left out")
    there = home.config_path.is_file()
    return Check("config", "ok", f"{home.config_path}" if there else "none: the defaults hold")


async def check_sidecar(home: Home) -> Check:
    """Whether the sidecar runs and proves that it is ours."""
    info = home.running()
    if info is None:
        return Check("sidecar", "ok", "not running; OpenCode starts it when it needs it")
    try:
        answer = await ask_sidecar(home, "status")
    except SidecarSilent as error:
        hint = "run `durable-stream stop`; OpenCode starts a new one"
        return Check("sidecar", "problem", f"pid {info.pid} does not answer: {error}", hint)
    up = describe_span((answer.get("sidecar") or {}).get("uptime_ms") or 0)
    links = counted(len(answer.get("links") or []), "link")
    return Check("sidecar", "ok", f"pid {info.pid} on port {info.port} proved itself; up {up}, {links}")


async def check_log(home: Home) -> AsyncIterator[Check]:
    """The head, the newest records, torn tails set aside, and gaps."""
    try:
        reader = JsonlReader(home.store_path)
        head = reader.head
        newest = 0
        async for _ in reader.read_all(after=max(head - TAIL_RECORDS, NOTHING)):
            newest += 1
        gaps = 0
        async for _ in reader.query(Filter(types=("capture.gap",))):
            gaps += 1
    except StreamError as error:
        yield Check("log", "problem", str(error), "`durable-stream verify` shows every fault")
        return
    except OSError as error:
        yield Check(
            "log", "problem", f"cannot be read: {error.strerror}", f"check the owner and mode of {home.store_path}"
        )
        return
    if head == NOTHING:
        yield Check("log", "note", "nothing recorded yet", "work in OpenCode, then look again")
    else:
        yield Check("log", "ok", f"{counted(head + 1, 'record')}; the newest {newest} are whole")
    torn = torn_files(home.store_path)
    if torn:
        hint = "they were never acknowledged; OpenCode has sent them again"
        yield Check("torn tails", "note", f"{len(torn)} set aside in {torn[0].parent}", hint)
    if gaps:
        hint = "see what was lost: durable-stream query --type capture.gap"
        yield Check("gaps", "note", f"{counted(gaps, 'gap')} where hooks were lost", hint)


def check_spool(home: Home) -> Check:
    """What waits for the sidecar."""
    waiting = spool_size(home)
    text = f"{counted(waiting['files'], 'file')}, {waiting['bytes']} bytes"
    if waiting["bytes"] > BACKLOG_BYTES and home.running() is None:
        return Check(
            "spool", "problem", f"{text} wait and no sidecar runs", "run `durable-stream serve` to take them in"
        )
    if waiting["files"] and home.running() is None:
        return Check("spool", "note", f"{text} wait", "the next start of the sidecar takes them in")
    return Check("spool", "ok", "empty" if not waiting["files"] else text)


def check_space(home: Home) -> Check:
    """Room on the home's disk."""
    directory = home.path
    while not directory.exists():
        directory = directory.parent
    free = shutil.disk_usage(directory).free
    text = f"{free // (1024 * 1024)} MiB free on the disk of {home.path}"
    if free < LOW_SPACE_BYTES:
        return Check("disk", "problem", text, "make room: a full disk stops the recording, not OpenCode")
    return Check("disk", "ok", text)
