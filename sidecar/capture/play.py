"""Play a recording: send raw hooks through a real link, as the shim does.

A recording is JSON lines ``{"t": ms, "hook": name, "input": …, "output": …}``.
The boot is the file's digest and each item's seq is its line number, so
playing a recording twice adds nothing the second time.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, Final

import orjson

from bridge.opencode.link.frames import MAX_SEQ, HookItem, ShimIdentity
from bridge.opencode.link.lenient import FrameError, read_leniently
from sidecar.home import Home, SidecarInfo
from sidecar.launch import START_SECONDS, LastWords, ended, ensure_running
from sidecar.link.client import LinkClosed, LinkUnavailable, ShimClient
from sidecar.version import VERSION
from streams.log.reader import LogReader

INSTANCE: Final = sha256(b"play").hexdigest()[:16]
GIVE_UP_SECONDS: Final = 60.0
"""Play gives up after this long without an ack. Until then it restarts a sidecar that exits."""

_MAX_PAUSE_SECONDS: Final = 1.0

MAX_EXPLAINED: Final = 2
"""Play gives up after this many sidecars exit with a reason and without an ack between
them, because the second one then met the same problem as the first, such as a full
disk."""

_END_SECONDS: Final = 5.0
"""How long a sidecar that closed its link may take to give a reason and exit."""

_LOOK_SECONDS: Final = 0.02

_CHUNK: Final = 64


class RecordingError(Exception):
    """The file is not a recording; the text names the line and the reason."""

    code: ClassVar[str] = "bad-recording"


@dataclass(slots=True)
class Recording:
    """A parsed recording: items with their line numbers, and what was left out."""

    boot_id: str
    items: list[tuple[int, HookItem]]
    skipped: int
    """The number of the recorder's own lines (hooks beginning with ``__``)."""


@dataclass(slots=True)
class Progress:
    """The progress of a play. ``relinked`` counts lost links that were reopened."""

    total: int
    acked: int = 0
    relinked: int = 0


@dataclass(frozen=True, slots=True)
class PlayResult:
    """The result of a finished play; everything is durable."""

    items: int
    skipped: int
    relinked: int
    added: int
    """The number of records that the log gained; 0 if it had all of them. Never negative."""


def read_recording(path: Path) -> Recording:
    """Parse a recording.

    Raises:
        RecordingError: a line is not a hook; the error names the line.
        OSError: the file cannot be read.
    """
    content = path.read_bytes()
    items: list[tuple[int, HookItem]] = []
    skipped = 0
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        item = _item(line, f"{path}:{number}")
        if item.hook.startswith("__"):
            skipped += 1
        else:
            items.append((number, item))
    return Recording(sha256(content).hexdigest(), items, skipped)


def _item(line: bytes, where: str) -> HookItem:
    try:
        fields: Any = orjson.loads(line)
    except ValueError:
        try:
            fields, _ = read_leniently(line)
        except FrameError as error:
            raise RecordingError(f"{where}: not valid JSON ({error}); nothing was sent") from None
    if type(fields) is dict and "hook" not in fields and ("opencode" in fields or {"type", "data"} <= fields.keys()):
        said = "a recording of OpenCode 2 has no hooks, so it cannot be played; nothing was sent"
        raise RecordingError(f"{where}: {said}")
    if type(fields) is not dict or type(fields.get("hook")) is not str or not 0 < len(fields["hook"]) <= 200:
        raise RecordingError(f"{where}: must be an object with t and a hook name; nothing was sent")
    t = fields.get("t")
    if not isinstance(t, int | float) or not 0 <= t <= MAX_SEQ:
        raise RecordingError(f"{where}: t must be milliseconds since 1970; nothing was sent")
    return HookItem(fields["hook"], int(t), fields.get("input"), fields.get("output"))


async def play(
    home: Home,
    path: Path,
    *,
    nonce: Callable[[], str],
    speed: float | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    instance: str = INSTANCE,
    start_seconds: float = START_SECONDS,
    give_up_seconds: float = GIVE_UP_SECONDS,
) -> PlayResult:
    """Send a recording to the home's sidecar, which is started if none runs; return when all of it is durable.

    ``speed`` is a factor on the recorded pace; ``None``: as fast as acks allow.
    ``instance`` is the plugin instance that the items come from.
    If the sidecar dies, play restarts it and resends what it had
    not acknowledged, until nothing was acknowledged for ``give_up_seconds``.
    ``nonce`` is the method of an identity. The sidecar's calls are answered with ``unavailable``.
    Cancelling leaves the first part recorded; playing again completes it.

    Raises:
        RecordingError, OSError: the file cannot be used; nothing was sent.
        LinkUnavailable, HomeError: no sidecar could be reached or accepted anything, or another process plays
            the same recording.
    """
    recording = await asyncio.to_thread(read_recording, path)
    progress = Progress(total=len(recording.items))
    identity = _identity(recording, instance)
    player = _Player(recording, progress, speed, on_progress)
    words = await asyncio.to_thread(LastWords)
    try:
        added = await _played(home, path, identity, nonce, player, start_seconds, give_up_seconds, words)
    finally:
        words.close()
    return PlayResult(progress.total, recording.skipped, progress.relinked, added)


async def _played(
    home: Home,
    path: Path,
    identity: ShimIdentity,
    nonce: Callable[[], str],
    player: _Player,
    start_seconds: float,
    give_up_seconds: float,
    words: LastWords,
) -> int:
    """Send everything, over as many links as needed; return how many records the log gained."""
    progress = player.progress
    loop = asyncio.get_running_loop()
    failures = explained = 0
    lowest = _head(home)
    give_up_at = loop.time() + give_up_seconds
    while True:
        acked, heard = progress.acked, words.size
        starting = True
        try:
            info = await ensure_running(home, start_seconds, words)
            starting = False
            # A killed sidecar may have left unacknowledged records, which recovery cuts off.
            lowest = min(lowest, _head(home))
            async with await ShimClient.connect(home, identity=identity, nonce=nonce) as client:
                await player.run(client)
                break
        except LinkClosed as error:
            if error.reason == "replaced":
                # Do not reconnect: that would end the other process's link, which would end ours, and so on.
                hint = "wait for it to finish, then play again: no event is recorded twice"
                raise LinkUnavailable(f"another process is playing {path}", hint) from None
            progress.relinked += 1
            await _until_gone(home, info)
            when = "repeatedly without accepting anything"
            failure = LinkUnavailable(*ended(home, when, words))
        except LinkUnavailable as error:
            # The sidecar may have died between the check and the connection, or while it started.
            failure = error
            if starting and words.size > heard:
                raise  # it gave the reason why it cannot start
        if progress.acked > acked:
            failures = explained = 0
            give_up_at = loop.time() + give_up_seconds
        else:
            failures += 1
            explained += 1 if words.size > heard else 0
        # Start a sidecar again if it was killed, but not if it cannot write its log.
        if explained >= MAX_EXPLAINED or loop.time() >= give_up_at:
            raise failure
        await asyncio.sleep(min(0.05 * failures, _MAX_PAUSE_SECONDS))
    head = _head(home)
    return head - min(lowest, head)


async def _until_gone(home: Home, info: SidecarInfo) -> None:
    """Wait for a sidecar that closed its link, because it says why it gives up before it releases its home."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _END_SECONDS
    while loop.time() < deadline:
        now = home.running()
        if not home.is_locked() or (now is not None and now.boot != info.boot):
            return
        await asyncio.sleep(_LOOK_SECONDS)


def _head(home: Home) -> int:
    return LogReader(home.store_path).head


class _Player:
    """The position in a recording; the next link continues there."""

    def __init__(
        self,
        recording: Recording,
        progress: Progress,
        speed: float | None,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        self._items, self.progress = recording.items, progress
        self._speed, self._on_progress = speed, on_progress
        self._seqs = [seq for seq, _ in recording.items]
        self._acked = 0

    async def run(self, client: ShimClient) -> None:
        """Send everything that is not acknowledged; return when all of it is."""
        self._note(client)
        place = bisect_right(self._seqs, self._acked)
        try:
            while place < len(self._items):
                first, items = self._chunk(place)
                await self._keep_pace(place)
                await client.send(items, first_seq=first)
                place += len(items)
                self._note(client)
            await client.drained()
        finally:
            self._note(client)

    def _chunk(self, place: int) -> tuple[int, list[HookItem]]:
        """Return the next items with consecutive line numbers; only one if the pace is kept."""
        first = self._items[place][0]
        items: list[HookItem] = []
        for seq, item in self._items[place : place + (_CHUNK if self._speed is None else 1)]:
            if seq != first + len(items):
                break
            items.append(item)
        return first, items

    async def _keep_pace(self, place: int) -> None:
        if self._speed is not None and place > 0:
            gap_ms = self._items[place][1].t - self._items[place - 1][1].t
            await asyncio.sleep(max(gap_ms, 0) / 1000 / self._speed)

    def _note(self, client: ShimClient) -> None:
        self._acked = max(self._acked, client.acked)
        self.progress.acked = bisect_right(self._seqs, self._acked)
        if self._on_progress is not None:
            self._on_progress(self.progress)


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
