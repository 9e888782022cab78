"""Plays a recording of OpenCode 2: serves the recording, and announces the service, as the plugin does. The sidecar
then reads the recording from this service.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from bridge.opencode.link.frames import ShimIdentity
from sidecar.home import Home
from sidecar.link.client import ControlClient, ShimClient
from sidecar.opencode2.registration import PLAYED
from sidecar.playing.progress import Pace, Progress
from sidecar.playing.recorded_service import RecordedService, ServiceRecording
from sidecar.version import VERSION

AHEAD: Final = 1000
"""The sidecar is kept less than this many events behind, because it stops following a live stream that is too far
ahead."""

_LOOK_SECONDS: Final = 0.01


class ServicePlayer:
    """See ``play.Player``. Use this class as a context manager, which ends the service and removes the registration."""

    def __init__(
        self,
        home: Home,
        recording: ServiceRecording,
        progress: Progress,
        pace: Pace,
        nonce: Callable[[], str],
        instance: str,
    ) -> None:
        self.progress = progress
        name = recording.digest[:16]
        self.registration = home.path / f"{PLAYED}{name}.json"
        self._identity = ShimIdentity(
            shim_version=VERSION,
            boot_id=recording.digest,
            instance=instance,
            pid=0,  # the recorded service's pid is unknown
            project="",
            directory="",
            worktree="",
            opencode_version="recording",
            last_seq=0,
            service=str(self.registration),
        )
        self._home, self._recording, self._pace, self._nonce = home, recording, pace, nonce
        self._password = nonce()
        self._service = RecordedService(recording, self._password)
        self._stack = ExitStack()

    def __enter__(self) -> ServicePlayer:
        self._stack.enter_context(self._service)
        self._stack.callback(self._unregister)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def announce(self) -> ShimIdentity:
        """See ``play.Player``."""
        self._register()
        return self._identity

    async def run(self, client: ShimClient) -> None:
        """See ``play.Player``."""
        rows, events = self._recording.rows, [event for _, event in self._recording.rows]
        async with await ControlClient.connect(self._home, version=VERSION, nonce=self._nonce) as control:
            await self._level(client, control)
            for place in range(self._service.shown, len(rows)):
                if place > 0:
                    await self._pace.keep(events[place].t - events[place - 1].t)
                self._service.show(place + 1)
                if self._recording.is_in_order(place) or (place + 1) % AHEAD == 0:
                    await self._level(client, control)

    async def _level(self, client: ShimClient, control: ControlClient) -> None:
        """Wait until the sidecar has recorded everything that has happened."""
        while True:
            client.need_open()
            status: dict[str, Any] = await control.request("status")
            mine = [each for each in status["services"] if each["registration"] == str(self.registration)]
            # ``taken`` must exceed ``shown``, because it also counts the row with which the live stream begins.
            if mine and mine[0]["state"] == "read" and mine[0]["taken"] > self._service.shown:
                self.progress.acked = self._service.shown
                self._pace.note()
                return
            await asyncio.sleep(_LOOK_SECONDS)

    def _register(self) -> None:
        """Write the registration file, in which a service says where it listens. The file gets the time when the
        recorded service started.
        """
        told = {
            "id": self.registration.stem,
            "version": self._recording.version,
            "url": f"http://127.0.0.1:{self._service.port}",
            "pid": os.getpid(),
            "password": self._password,
        }
        draft = self.registration.with_suffix(f".{os.getpid()}.new")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(told, file)
        began = min((event.t for _, event in self._recording.rows if event.t), default=1) / 1000
        os.utime(draft, (began, began))
        draft.replace(self.registration)

    def _unregister(self) -> None:
        """Remove the file, unless another process is now playing the recording."""
        if self._password in _content(self.registration):
            self.registration.unlink()


def _content(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""
