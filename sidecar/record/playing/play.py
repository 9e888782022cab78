"""Play a recording through a real link, as the plugin does.

Playing a recording twice adds nothing the second time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sidecar.components import until
from sidecar.home import Home, SidecarInfo
from sidecar.link.client import LinkClosed, LinkUnavailable, ShimClient
from sidecar.link.launch import START_SECONDS, LastWords, ended, ensure_running
from sidecar.record.playing.hooks import INSTANCE, HookPlayer, read_recording
from sidecar.record.playing.progress import Pace, Progress
from streams.log.reader import LogReader
from streams.system.retry import Retry

GIVE_UP_SECONDS: Final = 60.0
"""Play gives up after this many seconds without an ack. Until then, play restarts a sidecar that exits."""

_RETRY: Final = Retry(0.05, 1.0)

MAX_EXPLAINED: Final = 2
"""Play gives up after this many sidecars in a row have exited with a reason and without an ack. The second sidecar has
probably met the same problem as the first, such as a full disk.
"""

_END_SECONDS: Final = 5.0
"""How long a sidecar that closed its link may take to give a reason and exit."""


@dataclass(frozen=True, slots=True)
class PlayResult:
    """The result of a finished play; everything is durable."""

    items: int
    skipped: int
    relinked: int
    added: int
    """The number of records that the log gained; 0 if the log already had all of them. Never negative."""
    kind: str = "hooks"
    """What the items are: ``hooks`` of OpenCode 1, or ``events`` of OpenCode 2."""


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
    """Send a recording to the home's sidecar, which is started if none is running; return when all of it is durable.

    ``speed`` multiplies the recorded pace; ``None`` means as fast as acks allow. ``instance`` is the plugin instance
    that the items come from. If the sidecar dies, play restarts it and resends what was not acknowledged; play gives up
    once nothing has been acknowledged for ``give_up_seconds``. ``nonce`` is an identity's method of that name. The
    sidecar's calls are answered with ``unavailable``. Cancelling leaves the first part recorded; playing again
    completes it.

    Raises:
        Failure, OSError: the file cannot be used; nothing was sent.
        LinkUnavailable, HomeError: no sidecar could be reached, the sidecars that were reached accepted nothing, or
            another process is playing the same recording.
    """
    progress = Progress(0)
    pace = Pace(speed, lambda: on_progress(progress) if on_progress is not None else None)
    recording = await asyncio.to_thread(read_recording, path)
    progress.total = len(recording.items)
    player = HookPlayer(recording, progress, pace, instance)
    words = await asyncio.to_thread(LastWords)
    with closing(words):
        added = await _played(home, path, nonce, player, start_seconds, give_up_seconds, words)
    return PlayResult(progress.total, recording.skipped, progress.relinked, added, recording.kind)


async def _played(
    home: Home,
    path: Path,
    nonce: Callable[[], str],
    player: HookPlayer,
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
            # Read the head again, because a killed sidecar may leave unacknowledged records, which recovery cuts off.
            lowest = min(lowest, _head(home))
            async with await ShimClient.connect(home, identity=player.announce(), nonce=nonce) as client:
                await player.run(client)
                break
        except LinkClosed as error:
            if error.reason == "replaced":
                # Do not reconnect: our new link would end the other process's link, and the two would fight forever.
                hint = "wait for it to finish, then play again: no event is recorded twice"
                raise LinkUnavailable(f"another process is playing {path}", hint) from None
            progress.relinked += 1
            await _until_gone(home, info)
            when = "repeatedly without accepting anything"
            failure = LinkUnavailable(*ended(home, when, words))
        except LinkUnavailable as error:
            # The sidecar may have died while it started, or between the check that it is running and the connection.
            failure = error
            if starting and words.size > heard:
                raise  # the sidecar has said why it cannot start, so trying again is useless
        if progress.acked > acked:
            failures = explained = 0
            give_up_at = loop.time() + give_up_seconds
        else:
            failures += 1
            explained += 1 if words.size > heard else 0
        # Start another sidecar if the last one was killed, but not if sidecars keep stating why they fail.
        if explained >= MAX_EXPLAINED or loop.time() >= give_up_at:
            raise failure
        await asyncio.sleep(_RETRY.pause(failures))
    head = _head(home)
    return head - min(lowest, head)


async def _until_gone(home: Home, info: SidecarInfo) -> None:
    """Wait until a sidecar that closed its link has gone, because a sidecar that gives up reports the reason before it
    releases its home."""

    def is_gone() -> bool:
        now = home.running()
        return not home.is_locked() or (now is not None and now.boot != info.boot)

    await until(is_gone, _END_SECONDS)


def _head(home: Home) -> int:
    return LogReader(home.store_path).head
