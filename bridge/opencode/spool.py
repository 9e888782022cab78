"""The spool file's lines: what a shim writes when no sidecar takes its hooks. Pure.

The first line is a header, each further one ``{"seq": n, "item": {hook, t, input, output}}``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from bridge.opencode.frames import MAX_SEQ, HookItem
from bridge.opencode.lenient import FrameError, read_leniently


@dataclass(frozen=True, slots=True)
class SpoolHeader:
    """Whose spool it is. ``started_ms`` is when the instance began, ms since 1970 UTC."""

    pid: int
    started_ms: int
    directory: str


def parse_header(line: bytes) -> SpoolHeader:
    """Read the first line. Raises ``FrameError`` when it is none."""
    fields = _object(line)
    pid, started, directory = fields.get("pid"), fields.get("started_ms"), fields.get("directory")
    if fields.get("spool") != 1 or type(pid) is not int or pid <= 0:
        raise FrameError("not a spool header")
    return SpoolHeader(pid, started if type(started) is int else 0, directory if type(directory) is str else "")


def parse_line(line: bytes) -> tuple[int, HookItem]:
    """(seq, item) of a further line. Raises ``FrameError`` when it is damaged."""
    fields = _object(line)
    seq, item = fields.get("seq"), fields.get("item")
    if type(seq) is not int or not 0 < seq <= MAX_SEQ or type(item) is not dict:
        raise FrameError("not a spool line")
    hook, t = item.get("hook"), item.get("t")
    if type(hook) is not str or not hook or type(t) is not int or not 0 <= t <= MAX_SEQ:
        raise FrameError("not a hook")
    return seq, HookItem(hook, t, item.get("input"), item.get("output"))


def _object(line: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(line)
    except ValueError:
        value, _ = read_leniently(line)
    if type(value) is not dict:
        raise FrameError("not an object")
    return value
