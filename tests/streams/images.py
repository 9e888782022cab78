"""Crash images: what a disk may contain after a power loss, made from a store's recorded changes.

The disk keeps synced data. Of the rest it keeps any part: any sectors of a file, even the last without the first;
any names of a directory; the new size of a file with or without the data written there (then zeros). A synced name
may refer to a file whose data was not synced. A rename is atomic.

No order between writes is assumed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Literal, TypeVar

from tests.streams.calls import Call

T = TypeVar("T")

PAGE = 4096
"""The kernel takes a write page by page, and looks for a deadly signal between two of them."""

Loss = Literal["nothing", "everything", "some", "order"]
"""What is lost of what was not synced; ``order``: all after some moment."""


@dataclass(slots=True)
class _File:
    durable: bytearray = field(default_factory=bytearray)
    pending: list[Call] = field(default_factory=list)


@dataclass(slots=True)
class Disk:
    """The model: fed the changes in order, it makes images of the moment after the last one."""

    root: str
    _files: list[_File] = field(default_factory=list)
    _by_number: dict[int, int] = field(default_factory=dict)
    _now: dict[str, int] = field(default_factory=dict)
    """Names as the system shows them: a place in ``_files``, -1 for a directory."""
    _durable: dict[str, int] = field(default_factory=dict)
    _pending: list[tuple[Call, int]] = field(default_factory=list)
    """Changes of names that no directory's sync has made durable, with the file they are about."""

    def feed(self, call: Call) -> None:
        """Apply one change."""
        if call.kind in ("create", "mkdir"):
            place = -1
            if call.kind == "create":
                place = len(self._files)
                self._files.append(_File())
            self._now[call.path] = place
            self._pending.append((call, place))
        elif call.kind == "rename":
            place = self._now[call.to] = self._now.pop(call.path)
            self._pending.append((call, place))
        elif call.kind in ("unlink", "rmdir"):
            self._pending.append((call, self._now.pop(call.path)))
        elif call.kind == "sync directory":
            mine = [change for change in self._pending if _above(change[0].path) == call.path]
            for change in mine:
                _apply(self._durable, *change)
            self._pending = [change for change in self._pending if change not in mine]
        else:
            file = self._files[self._now[call.path]]
            if call.kind == "sync":
                for change in file.pending:
                    _write(file.durable, change)
                file.pending.clear()
            else:
                file.pending.append(call)

    def image(self, to: Path, random: Random, loss: Loss, sector: int, *, half: Call | None = None) -> None:
        """Write one image below ``to``, in place of ``root``; perhaps with the whole pages of ``half``."""
        if half is not None and half.kind == "write" and random.random() < 0.5:
            whole_pages = (half.offset + len(half.data)) // PAGE * PAGE - half.offset
            pending = self._files[self._now[half.path]].pending
            pending.append(replace(half, data=half.data[: max(whole_pages, 0)]))
            self.image(to, random, loss, sector)
            pending.pop()
            return
        kept = self._kept(self._pending, random, loss)
        names = dict(self._durable)
        for change in kept:
            _apply(names, *change)
        for name in sorted(names):
            place = names[name]
            # Nothing is reached through a directory whose own name is not there.
            if any(f"{parent}" not in names for parent in _parents(name, self.root)):
                continue
            path = to / os.path.relpath(name, self.root)
            if place < 0:
                path.mkdir()
                continue
            path.write_bytes(self._data(self._files[place], random, loss, sector))

    def _kept(self, changes: Sequence[T], random: Random, loss: Loss) -> list[T]:
        if loss == "nothing":
            return list(changes)
        if loss == "everything":
            return []
        if loss == "order":
            return list(changes[: random.randrange(len(changes) + 1)])
        return [change for change in changes if random.random() < 0.5]

    def _data(self, file: _File, random: Random, loss: Loss, sector: int) -> bytes:
        data = bytearray(file.durable)
        size = len(data)
        for change in file.pending:
            if change.kind == "truncate":
                if self._kept([change], random, loss):
                    _write(data, change)
                    size = len(data)
                continue
            pieces = _sectors(change, sector)
            kept = self._kept(pieces, random, loss)
            for piece in kept:
                _write(data, piece)
            size = max(size, change.offset + len(change.data))
            if loss == "order" and len(kept) < len(pieces):
                break
        if loss == "some" and len(data) < size and random.random() < 0.3:
            data.extend(bytes(size - len(data)))  # the new size is there, what was written is not
        return bytes(data)


def _sectors(call: Call, sector: int) -> list[Call]:
    """Split a write into sectors."""
    pieces = []
    at, end = call.offset, call.offset + len(call.data)
    while at < end:
        following = min((at // sector + 1) * sector, end)
        part = call.data[at - call.offset : following - call.offset]
        pieces.append(Call("write", call.path, call.file, at, part))
        at = following
    return pieces


def _write(data: bytearray, call: Call) -> None:
    if call.kind == "truncate":
        del data[call.size :]
        data.extend(bytes(call.size - len(data)))
        return
    data.extend(bytes(max(call.offset - len(data), 0)))
    data[call.offset : call.offset + len(call.data)] = call.data


def _apply(names: dict[str, int], call: Call, place: int) -> None:
    if call.kind == "rename":
        names.pop(call.path, None)
        names[call.to] = place
    elif call.kind in ("create", "mkdir"):
        names[call.path] = place
    elif names.get(call.path) == place:
        del names[call.path]


def _above(name: str) -> str:
    return name.rpartition("/")[0]


def _parents(name: str, root: str) -> list[str]:
    found = []
    parent = _above(name)
    while parent != root:
        found.append(parent)
        parent = _above(parent)
    return found
