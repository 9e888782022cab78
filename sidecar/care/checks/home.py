"""Checks of the home: its files, configuration, port, disk and spool, and the clock."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from sidecar.care.checks.check import Check, Fix, Scene
from sidecar.care.checks.running_sidecar import CONFIG_CHANGED
from sidecar.home import Home
from sidecar.private_files import HomeError
from sidecar.read.wording import counted
from sidecar.record.backlog import backlog
from streams.log.directory import LOCK
from streams.query import describe_span

LOW_SPACE_BYTES = 200 * 1024 * 1024
BACKLOG_BYTES = 64 * 1024 * 1024

AHEAD_MS = 60_000
"""How far in the future a time may be before the clock is reported."""


def check_home(scene: Scene) -> list[Check]:
    """Whether the owner and the modes of the home's directories are right."""
    home = scene.home
    try:
        home.check_kind()
    except HomeError as error:
        return [Check("home", "problem", f"{error.path}: {error.problem}", error.hint)]
    if not home.path.is_dir():
        return [Check("home", "note", f"{home.path} does not exist yet", "the first start of the sidecar creates it")]
    found = home.path.stat()
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid != os.geteuid():
        return [Check("home", "problem", f"{home.path} is owned by another user", "choose another home with `--home`")]
    if mode & 0o077:
        text = f"{home.path} is accessible to other users (mode {mode:o})"
        return [Check("home", "problem", text, f"run `chmod 700 {home.path}`", Fix("close", home.path))]
    for path in (home.path, home.store_path, home.spool_path, home.store_path / LOCK):
        if (foreign := _foreign(path)) is not None:
            return [foreign]
        if path.exists() and os.statvfs(path).f_flag & os.ST_RDONLY:
            text = f"{path} is on a read-only file system, so nothing is recorded"
            return [Check("home", "problem", text, "mount the disk writable, or install again with another `--home`")]
        if path.exists() and not os.access(path, os.W_OK | (os.X_OK if path.is_dir() else os.R_OK)):
            text, hint = f"{path} cannot be written, so nothing is recorded", f"run `chmod -R u+rwX {home.path}`"
            return [Check("home", "problem", text, hint, Fix("unlock", path))]
    return [Check("home", "ok", f"{home.path}, accessible only to you")]


def _foreign(path: Path) -> Check | None:
    """The finding for a part of the home that the sidecar refuses to use."""
    try:
        found = path.lstat()
    except OSError:
        return None  # the path is missing, or inside a directory that is already reported
    if stat.S_ISLNK(found.st_mode):
        text = f"{path} is a symbolic link, which the sidecar does not follow, so nothing is recorded"
        return Check("home", "problem", text, "replace the link with the directory or file it points to")
    if found.st_uid != os.geteuid():
        text = f"{path} is owned by user {found.st_uid}, not by you, so nothing is recorded"
        return Check(
            "home", "problem", text, "choose another home with `--home`, or ask the owner to transfer the file to you"
        )
    return None


def check_token(scene: Scene) -> list[Check]:
    """Whether the token is a regular file that this user owns and that other users cannot access."""
    home = scene.home
    if not home.path.is_dir():
        return []
    if not os.path.lexists(home.token_path):
        return [Check("token", "ok", "does not exist yet; the first start of the sidecar creates it")]
    try:
        home.read_token()
    except HomeError as error:
        return [Check("token", "problem", f"{error.path}: {error.problem}", error.hint, Fix("renew token", error.path))]
    return [Check("token", "ok", "readable only by you")]


def check_config(scene: Scene) -> list[Check]:
    """Whether the configuration can be read, and whether the running sidecar is using it."""
    path = scene.home.config_path
    if scene.config is None and not scene.config_fault:
        return []  # a quick scene does not read defaults
    if scene.config is None:
        return [Check("config", "problem", scene.config_fault, scene.config_advice)]
    if (scene.answer or {}).get("config_changed"):
        return [Check("config", "note", *CONFIG_CHANGED)]
    return [Check("config", "ok", str(path) if path.is_file() else "no file; the defaults apply")]


def check_port(scene: Scene) -> list[Check]:
    """Whether the configured port can be used."""
    port = scene.config.link.port if scene.config is not None else 0
    if not port:
        return []
    info = scene.home.running()
    if info is not None:
        if info.port == port:
            return [Check("port", "ok", f"{port}, as configured")]
        text = f"the running sidecar listens on port {info.port}, but port {port} is configured"
        return [Check("port", "note", text, "run `durable-stream stop`; the next sidecar uses the configured port")]
    if (reason := port_fault(port)) is not None:
        text = f"the configured port {port} cannot be used ({reason}), so no sidecar can start"
        hint = f"set another `port` in [link] in {scene.home.config_path}, or 0 for any free port"
        return [Check("port", "problem", text, hint)]
    return [Check("port", "ok", f"{port} is free")]


def port_fault(port: int) -> str | None:
    """Why a port of the loopback interface cannot be used."""
    with socket.socket() as probe:
        # Bind with SO_REUSEADDR, as the sidecar does, so that recently closed connections do not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return "another program is using it" if error.errno == errno.EADDRINUSE else str(error.strerror)
    return None


PAGES: Final = {"metrics": "`port` in [metrics]", "answers": "`answer_port` in [notify]"}
"""What the sidecar serves over HTTP, and the setting of its port."""


def check_pages(scene: Scene) -> list[Check]:
    """Whether the running sidecar listens on each port that is set for what it serves over HTTP."""
    return page_checks(scene.answer or {})


def page_checks(status: Mapping[str, Any]) -> list[Check]:
    """``check_pages`` for the running sidecar's status."""
    checks = []
    for name, now in (status.get("pages") or {}).items():
        if now is not None and now["problem"]:
            hint = f"set another {PAGES[name]}, then run `durable-stream stop`"
            checks.append(Check("pages", "note", f"{name}: {now['problem']}", hint))
        elif now is not None:
            checks.append(Check("pages", "ok", f"{name}: port {now['port']}"))
    return checks


def check_clock(scene: Scene) -> list[Check]:
    """Whether an event or a file has a time in the future."""
    now = scene.now_ms
    hint = "check the clock of this machine; the order of records does not depend on the clock"
    ahead = (scene.survey.last_ts or 0) - now
    if ahead > AHEAD_MS:
        text = f"the newest event is {describe_span(ahead)} ahead of the clock"
        return [Check("clock", "note", text, hint)]
    for path, changed in _times(scene.home):
        if changed - now > AHEAD_MS:
            text = f"{path} was written {describe_span(changed - now)} ahead of the clock"
            return [Check("clock", "note", text, hint)]
    return [Check("clock", "ok", "no event and no file has a time in the future")]


def _times(home: Home) -> Iterator[tuple[Path, int]]:
    for path in (home.token_path, home.info_path, home.log_path, home.store_path / "head"):
        with suppress(PermissionError):  # another check reads this file and reports the error
            if path.is_file():
                yield path, path.stat().st_mtime_ns // 1_000_000


def marks_text(waiting: Mapping[str, int]) -> str | None:
    """What is said of OpenCodes whose hooks no spool has; ``None`` if there are none."""
    count = waiting["marks"]
    text = f"{counted(count, 'OpenCode')} could neither send hooks to a sidecar nor write them to the spool; "
    return text + "what is only in memory when OpenCode ends is lost, and recorded as a gap" if count else None


def check_spool(scene: Scene) -> list[Check]:
    waiting = backlog(scene.home.spool_path)
    text = f"{counted(waiting['files'], 'file')}, {waiting['bytes']} bytes"
    if (lost := marks_text(waiting)) is not None:
        return [Check("spool", "problem", lost, "make room on the disk, and let the home be written")]
    if scene.home.running() is not None or not waiting["files"]:
        return [Check("spool", "ok", "empty" if not waiting["files"] else text)]
    fix = Fix("take spools", scene.home.spool_path)
    if waiting["bytes"] > BACKLOG_BYTES:
        hint = "run `durable-stream serve` to record these hooks"
        return [Check("spool", "problem", f"{text} are waiting, and no sidecar is running", hint, fix)]
    return [Check("spool", "note", f"{text} waiting", "the next start of the sidecar records them", fix)]


def check_space(scene: Scene) -> list[Check]:
    directory = scene.home.path
    while not directory.exists():
        directory = directory.parent
    free = shutil.disk_usage(directory).free
    text = f"{free // (1024 * 1024)} MiB free on the disk of {scene.home.path}"
    if free < LOW_SPACE_BYTES:
        return [
            Check("disk", "problem", text, "free some space; on a full disk, recording stops but OpenCode continues")
        ]
    return [Check("disk", "ok", text)]
