"""The lines of the spool file, in which a shim keeps hooks that no sidecar has acknowledged. Pure.

The first line is a header. Each other line is ``{"seq":n,"sum":"…","item":{hook, t, input, output}}``. ``sum`` is the
CRC-32 of ``n``, a comma and the item's bytes, in hex. Seqs are written without gaps. So one rule finds all damage: a
line with a wrong sum is dropped, and a missing seq means a lost item.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import orjson

from bridge.opencode.link.frames import MAX_SEQ, HookItem
from bridge.opencode.link.lenient import FrameError, read_leniently

_LINE = re.compile(rb'\{"seq":([1-9][0-9]{0,15}),"sum":"([0-9a-f]{8})","item":(.*)\}', re.DOTALL)


@dataclass(frozen=True, slots=True)
class SpoolHeader:
    """The spool's owner. ``started_ms`` is the time when the instance started, in ms since 1970 UTC. ``service`` is the
    registration file of its OpenCode 2 service; empty in OpenCode 1. ``space`` is the pid namespace of ``pid``, if the
    system has any."""

    pid: int
    started_ms: int
    directory: str
    service: str = ""
    space: str = ""


def parse_header(line: bytes) -> SpoolHeader:
    """Read the first line. Raises ``FrameError`` if the line is not a header."""
    fields = _object(line)
    pid, started, directory = fields.get("pid"), fields.get("started_ms"), fields.get("directory")
    if fields.get("spool") != 2 or type(pid) is not int or pid <= 0:
        raise FrameError("not a spool header")
    service, space = fields.get("service"), fields.get("pid_space")
    return SpoolHeader(
        pid,
        started if type(started) is int else 0,
        directory if type(directory) is str else "",
        service if type(service) is str else "",
        space if type(space) is str else "",
    )


def parse_line(line: bytes) -> tuple[int, HookItem]:
    """Return (seq, item) of a line other than the first, given without its newline. Raises ``FrameError`` if the line
    is damaged."""
    match = _LINE.fullmatch(line)
    if match is None:
        raise FrameError("not a spool line")
    digits, found, text = match.groups()
    if b"%08x" % crc32(digits + b"," + text) != found:
        raise FrameError("wrong checksum")
    seq, item = int(digits), _object(text)
    hook, t = item.get("hook"), item.get("t")
    if seq > MAX_SEQ or type(hook) is not str or not hook or type(t) is not int or not 0 <= t <= MAX_SEQ:
        raise FrameError("not a hook")
    return seq, HookItem(hook, t, item.get("input"), item.get("output"))


def read_items(lines: Iterable[bytes]) -> Iterator[tuple[int, HookItem]]:
    """Yield the items of the lines after the header, with ascending seqs.

    A ``capture.gap`` replaces lost items and has the last lost seq. Before the
    first readable line and after the last one, the number of damaged lines
    says how many items are lost.
    """
    last = damaged = t = 0
    for line in lines:
        try:
            seq, item = parse_line(line)
        except FrameError:
            damaged += 1
            continue
        if seq <= last:
            continue  # the line repeats an earlier line
        t = item.t
        # Everything before the spool's first line was acknowledged, so only damaged lines can be missing there.
        first = last + 1 if last else max(1, seq - damaged)
        if first < seq:
            yield seq - 1, _gap(first, seq - 1, t)
        yield seq, item
        last, damaged = seq, 0
    if damaged:
        yield last + damaged, _gap(last + 1, last + damaged, t)


def _gap(first: int, last: int, t: int) -> HookItem:
    lost = {"lost": last - first + 1, "reason": "spool_damaged", "first_seq": first, "last_seq": last}
    return HookItem("capture.gap", t, lost, None)


def _object(line: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(line)
    except ValueError:
        value, _ = read_leniently(line)
    if type(value) is not dict:
        raise FrameError("not an object")
    return value
