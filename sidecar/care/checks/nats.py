"""Checks of NATS: the program and the directory of an embedded server, or the connection to an external server.

NATS faults never stop recording, so every finding here is a note.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from sidecar.care.checks.agents import RESERVED
from sidecar.care.checks.check import Check, Scene
from sidecar.care.checks.home import port_fault
from sidecar.read.wording import counted

if TYPE_CHECKING:
    from sidecar.config import NatsConfig


FULL_FROM: Final = 0.9
"""From this share of its limit on, a store or stream is said to be full soon."""


def check_nats(scene: Scene) -> list[Check]:
    """Whether ``[nats]`` can work as configured, and its present state."""
    now = (scene.answer or {}).get("nats")
    if scene.quick:
        fault = (
            [_note(now["problem"], "`durable-stream doctor` says more")] if now is not None and now["problem"] else []
        )
        return [*fault, *_mirror(now), *_machines(now)]
    if scene.config is None:
        return []
    config = scene.config.nats
    found: list[Check] = []
    if now is not None and now["mode"] != config.mode:
        text = f"mode {config.mode} is configured, but the running sidecar started with mode {now['mode']}"
        found.append(_note(text, "run `durable-stream stop`; the next sidecar uses the configured mode"))
        now = None
    if config.mode == "off":
        return [*found, Check("nats", "ok", "off: the log is not mirrored")]
    if config.mode == "embedded":
        return [*found, *_embedded(config, scene.home.nats_path, now), *_mirror(now)]
    return [*found, *_external(config), *_mirror(now), *_machines(now)]


def _embedded(config: NatsConfig, directory: Path, now: Mapping[str, Any] | None) -> list[Check]:
    from sidecar.mirror.server.executable import StartFailed, find_executable

    found: list[Check] = []
    program = ""
    try:
        executable = asyncio.run(find_executable(config.executable))
        program = f"nats-server {executable.version} ({executable.path})"
    except StartFailed as error:
        text, _, hint = str(error).rpartition("; ")
        found.append(_note(text, hint))
    if (bad := _bad_directory(directory)) is not None:
        found.append(_note(*bad))
    server = (now or {}).get("server")
    if now is not None and now["problem"]:
        found.append(_note(f"the embedded server failed: {now['problem']}", f"see {directory / 'server.log'}"))
    elif now is None and config.port and (reason := port_fault(config.port)) is not None:
        text = f"port {config.port} cannot be used: {reason}"
        found.append(_note(text, "set another `port` in [nats], or 0 for any free port"))
    if found:
        return found
    if server is None:
        return [Check("nats", "ok", f"{program}; it starts with the sidecar, which is not running")]
    state = f"{server['state']}, pid {server['pid']}, port {server['port']}" if server["port"] else server["state"]
    return [Check("nats", "ok", f"{program}; {state}")]


def _bad_directory(directory: Path) -> tuple[str, str] | None:
    """The fault of an embedded server's directory and its hint.

    A missing directory is not a fault, because the server creates it.
    """
    move = "stop the sidecar and move this directory away; it holds only a copy of the log, which the sidecar rebuilds"
    for path in (directory, directory / "store"):
        try:
            about = path.lstat()
        except FileNotFoundError:
            continue
        except OSError as error:
            return f"{path} cannot be read: {error.strerror}", move
        if not stat.S_ISDIR(about.st_mode):
            return f"{path} is not a directory", move
        if about.st_uid != os.geteuid():
            return f"{path} is owned by another user", move
        if os.statvfs(path).f_flag & os.ST_RDONLY or not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            return f"{path} cannot be written", f"run `chmod -R u+rwX {path}`"
    return None


def _external(config: NatsConfig) -> list[Check]:
    from bridge.nats.jetstream.errors import NatsError, NatsRefused, NatsUnavailable
    from bridge.nats.jetstream.stream_plan import OLDEST, server_version
    from sidecar.mirror.settings import external_options

    options = external_options(config)
    try:
        version = asyncio.run(_asked(options))
    except (NatsRefused, NatsUnavailable) as error:
        return [_note(error.reason, error.hint)]
    except NatsError as error:
        return [_note(str(error), "enable JetStream on that server and for this user")]
    if server_version(version) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        return [
            _note(
                f"the NATS server at {options.shown} has version {version}; the oldest supported version is {oldest}",
                "use a newer server",
            )
        ]
    works = Check("nats", "ok", f"{options.shown} accepts the connection; version {version}, with JetStream")
    if (far := _unprotected(config)) is None:
        return [works]
    fault = f"{far} is on another machine and nothing asks for TLS, so others on the way may read the log"
    return [works, _note(fault, "write `tls://`")]


def _unprotected(config: NatsConfig) -> str | None:
    """A server on another machine to which the log may be sent without TLS."""
    if config.is_encrypted:
        return None
    hosts = [urlsplit(server).hostname or "" for server in config.servers]
    return next((host for host in hosts if not _is_loopback(host)), None)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


async def _asked(options: Any) -> str:
    """The server's version, after checking that it has JetStream."""
    from bridge.nats.jetstream.connection import JetStream

    session = await JetStream.connect(options)
    try:
        await session.api("INFO")
        return session.server.version
    finally:
        await session.close()


def _mirror(now: Mapping[str, Any] | None) -> list[Check]:
    """How far the running sidecar's mirror is behind. A fault of the server is reported once, by ``check_nats``."""
    mirror = (now or {}).get("mirror")
    if now is None or mirror is None:
        return []
    if mirror["problem"] and mirror["problem"] != now["problem"]:
        text, _, hint = mirror["problem"].partition("; ")
        return [Check("mirror", "note", f"{counted(mirror['lag'], 'record')} waiting: {text}", hint)]
    if mirror["lag"] and not now["connected"]:
        return [
            Check(
                "mirror",
                "note",
                f"{counted(mirror['lag'], 'record')} waiting for the server",
                "see the nats line above",
            )
        ]
    if (reserved := reserved_keys(mirror)) is not None:
        return [Check("mirror", "note", *reserved)]
    if (full := mirror["full"].get("store", 0.0)) >= FULL_FROM:
        text = f"the NATS server's store is {full:.0%} full; when it is full, nothing is mirrored any more"
        return [Check("mirror", "note", text, "raise `max_store_bytes` in [nats], or remove messages from the server")]
    behind = f"{counted(mirror['lag'], 'record')} behind the log" if mirror["lag"] else "up to date with the log"
    stream = mirror["full"].get("stream", 0.0)
    room = f"; its stream is {stream:.0%} full, then its oldest messages go" if stream >= FULL_FROM else ""
    return [Check("mirror", "ok", f"{behind}{room}; `durable-stream mirror verify` compares the two")]


def _machines(now: Mapping[str, Any] | None) -> list[Check]:
    """Whether this home has its machine's name."""
    machines = (now or {}).get("machines")
    if now is None or machines is None or not now["connected"] or not machines["problem"]:
        return []
    text, _, hint = machines["problem"].partition("; ")
    return [_note(text, hint)]


def reserved_keys(mirror: Mapping[str, Any]) -> tuple[str, str] | None:
    """The warning and the hint if the mirror has counted payload keys that a consumer could mistake for headers."""
    count = mirror.get("notes", {}).get(RESERVED, 0)
    if not count:
        return None
    text = f"{counted(count, 'mirrored message')} with payload keys that begin with CG-, a prefix reserved for headers"
    return text, "rename these keys in the program that writes the payload"


def _note(text: str, hint: str) -> Check:
    return Check("nats", "note", text, hint)
