"""A recording: the items of a plugin, sent as the plugin sends them.

The recording is JSON lines ``{"t": ms, "hook": name, "input": …, "output": …}``. The lines may also be events of an
OpenCode 2 service as its API sends them, ``{"id", "created", "type", "data", …}``; other objects between these are left
out. The boot is the file's digest and each item's seq is its line number, so playing a recording twice adds nothing the
second time.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import orjson

from bridge.opencode.capture.v2.event_fields import read_event
from bridge.opencode.capture.v2.translate import HOOK, is_of_service
from bridge.opencode.link.frames import MAX_FRAME_BYTES, MAX_SEQ, HookItem, ShimIdentity, batches
from bridge.opencode.link.lenient import FrameError, read_leniently
from sidecar.failure import Failure
from sidecar.link.client import ShimClient
from sidecar.record.playing.progress import Pace, Progress
from sidecar.version import VERSION

INSTANCE: Final = sha256(b"play").hexdigest()[:16]

_CHUNK: Final = 64

_LARGE_BYTES: Final = 1024 * 1024
"""From this number of bytes on, a line is measured as it is sent. A number may take several times its bytes then."""

_YEAR_2100_MS: Final = 4_102_444_800_000

_OF_API: Final = frozenset({"opencode", "session", "log", "messages"})


@dataclass(slots=True)
class Recording:
    """A parsed recording: items with their line numbers, and how many lines were left out."""

    boot_id: str
    items: list[tuple[int, HookItem]]
    skipped: int
    """The number of the recorder's own lines (hooks beginning with ``__``)."""

    @property
    def kind(self) -> str:
        """What the items are: ``hooks`` of OpenCode 1, or ``events`` of OpenCode 2."""
        return "events" if any(is_of_service(item) for _, item in self.items) else "hooks"


def read_recording(path: Path) -> Recording:
    """Parse a recording.

    Raises:
        Failure: a line is not a hook or is too long to send; the error names the line.
        OSError: the file cannot be read.
    """
    content = path.read_bytes()
    items: list[tuple[int, HookItem]] = []
    skipped = 0
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        item = _item(line, f"{path}:{number}", is_of_api=not items or items[0][1].hook == HOOK)
        if item.t >= _YEAR_2100_MS:
            raise Failure("bad-recording", f"{path}:{number}: its time is after the year 2099; nothing was sent")
        if item.hook.startswith("__"):
            skipped += 1
        else:
            if len(line) > _LARGE_BYTES:
                _check_size(number, item, f"{path}:{number}")
            items.append((number, item))
    return Recording(sha256(content).hexdigest(), items, skipped)


def _check_size(seq: int, item: HookItem, where: str) -> None:
    """Refuse an item that the sidecar would never accept, because it does not fit into one message."""
    size = sum(len(text.encode()) for _, text in batches(seq, [item]))
    if size > MAX_FRAME_BYTES:
        raise Failure(
            "bad-recording",
            f"{where}: this line is too long: as a message it has {size} bytes, and a message has at most "
            f"{MAX_FRAME_BYTES} ({MAX_FRAME_BYTES >> 20} MiB); nothing was sent. Shorten the line, then play again",
        )


def _item(line: bytes, where: str, *, is_of_api: bool) -> HookItem:
    try:
        fields: Any = orjson.loads(line)
    except ValueError:
        try:
            fields, _ = read_leniently(line)
        except FrameError as error:
            raise Failure("bad-recording", f"{where}: not valid JSON ({error}); nothing was sent") from None
    if type(fields) is dict and "hook" not in fields and is_of_api and (api := _of_api(fields)) is not None:
        return api
    if type(fields) is not dict or type(fields.get("hook")) is not str or not 0 < len(fields["hook"]) <= 200:
        raise Failure(
            "bad-recording",
            f"{where}: each line must be a JSON object with a `hook`, a name of 1 to 200 characters; nothing was sent",
        )
    t = fields.get("t")
    if not isinstance(t, int | float) or not 0 <= t <= MAX_SEQ:
        raise Failure("bad-recording", f"{where}: `t` must be milliseconds since 1970; nothing was sent")
    return HookItem(fields["hook"], int(t), fields.get("input"), fields.get("output"))


def _of_api(fields: dict[str, Any]) -> HookItem | None:
    """An event of a service, or another line of a recording of its API; ``None`` for anything else."""
    if (event := read_event(fields)) is not None:
        return HookItem(HOOK, event.t, fields)
    return HookItem("__api", 0) if _OF_API & fields.keys() else None


class HookPlayer:
    """Sends a recording and remembers the position in it, where the next link continues."""

    def __init__(
        self,
        recording: Recording,
        progress: Progress,
        pace: Pace,
        instance: str,
    ) -> None:
        self._items, self.progress, self._pace = recording.items, progress, pace
        self._identity = _identity(recording, instance)
        self._seqs = [seq for seq, _ in recording.items]
        self._acked = 0

    def announce(self) -> ShimIdentity:
        return self._identity

    async def run(self, client: ShimClient) -> None:
        """Send everything that is not acknowledged yet; return when everything is acknowledged."""
        self._note(client)
        place = bisect_right(self._seqs, self._acked)
        try:
            while place < len(self._items):
                first, items = self._chunk(place)
                if place > 0:
                    await self._pace.keep(self._items[place][1].t - self._items[place - 1][1].t)
                await client.send(items, first_seq=first)
                place += len(items)
                self._note(client)
            await client.drained()
        finally:
            self._note(client)

    def _chunk(self, place: int) -> tuple[int, list[HookItem]]:
        """Return the next items with consecutive line numbers; only one item if the recorded pace is kept."""
        first = self._items[place][0]
        items: list[HookItem] = []
        for seq, item in self._items[place : place + (_CHUNK if self._pace.speed is None else 1)]:
            if seq != first + len(items):
                break
            items.append(item)
        return first, items

    def _note(self, client: ShimClient) -> None:
        self._acked = max(self._acked, client.acked)
        self.progress.acked = bisect_right(self._seqs, self._acked)
        self._pace.note()


def _identity(recording: Recording, instance: str) -> ShimIdentity:
    return ShimIdentity(
        shim_version=VERSION,
        boot_id=recording.boot_id,
        instance=instance,
        pid=0,  # the recorded OpenCode's pid is unknown
        project="",
        directory="",
        worktree="",
        opencode_version="recording",
        last_seq=recording.items[-1][0] if recording.items else 0,
    )
