"""Checks of what is linked to the running sidecar: OpenCode's processes, and the headless ones for background work."""

from __future__ import annotations

import re
from typing import Final

from sidecar.care.checks.check import Check, Scene
from sidecar.home import Home
from sidecar.read.wording import counted
from streams.store import NOTHING

_LINKED = re.compile(r"^(\S+ [\d:]+)\S* INFO sidecar: link opened: .*, OpenCode (?!recording$)", re.MULTILINE)
"""A line of ``sidecar.log``; links of `play` do not count."""


SILENT_SECONDS: Final = 5
"""A plugin that lost its link has another one before that."""


def check_headless(scene: Scene) -> list[Check]:
    """Whether a headless OpenCode hangs or hung."""
    answer, shows = scene.answer or {}, "`durable-stream intents` shows the work"
    if (seconds := answer.get("silent") or 0) >= SILENT_SECONDS:
        ends = "if it makes no progress, it is ended, and another one goes on with the work"
        text = f"a headless OpenCode has had no link to the sidecar for {counted(seconds, 'second')}; {ends}"
        return [Check("links", "problem", text, f"{shows} that this holds up")]
    if hung := answer.get("hung"):
        text = f"{counted(hung, 'headless OpenCode')} hung and was ended since the sidecar started"
        return [Check("links", "note", text, f"{shows} that went on in another one")]
    return []


def check_door(scene: Scene) -> list[Check]:
    """Whether connections that did not prove who they are took room from others."""
    closed = ((scene.answer or {}).get("door") or {}).get("unproved_closed")
    text = f"{counted(closed or 0, 'connection')} closed to make room: too many did not authenticate"
    return [Check("links", "note", text)] if closed else []


def check_compared(scene: Scene) -> list[Check]:
    """Whether every session of an OpenCode 2 has been compared with what its service has."""
    apart = (scene.answer or {}).get("not_compared")
    text = f"{counted(apart or 0, 'session')} not compared with its service yet, and may lack something"
    return [Check("opencode 2", "note", text, "`durable-stream doctor` says why")] if apart else []


def check_links(scene: Scene) -> list[Check]:
    """Whether the plugin in any OpenCode has ever connected to the sidecar. A plugin file alone records nothing."""
    answer = scene.answer or {}
    linked = {link["pid"] for link in answer.get("links") or []}
    if linked:
        count = len(linked.intersection(answer.get("headless") or ()))
        headless = f", including {counted(count, 'headless one')}" if count else ""
        return [Check("links", "ok", f"{counted(len(linked), 'OpenCode')} connected now{headless}")]
    last = _last_link(scene.home)
    if last is not None:
        return [Check("links", "ok", f"none now; the last one opened at {last}")]
    if not scene.is_installed:
        return []
    text = f"the plugin is installed, but {scene.home.log_path} shows that no OpenCode has ever connected"
    if scene.survey.head > NOTHING:
        text += "; the records came through the spool, from `durable-stream play`, or from before that file begins"
    hint = "restart OpenCode in a project, without `--pure`, `OPENCODE_PURE` or `DURABLE_STREAM=off`"
    return [Check("links", "note", text, hint)]


def _last_link(home: Home) -> str | None:
    """When the newest link opened, according to ``sidecar.log``; ``None`` if that file shows no link."""
    for path in (home.log_path, *(home.log_path.with_name(f"{home.log_path.name}.{n}") for n in range(1, 101))):
        try:
            found = _LINKED.findall(path.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            return None
        if found:
            return str(found[-1])
    return None
