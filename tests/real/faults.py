"""Faults around the plugin, each a context manager over a ``Scene``.

A scene is a project of a running OpenCode with its own plugin file and home, the home on a small
disk where the user may mount one. Its plugin starts sidecars with a command that exists only after
``fix``, so a fault can prevent starts. A fault does not fix the scene when it ends.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path

from bridge.opencode.link.frames import PROTOCOL
from sidecar.home import Home, SidecarInfo
from streams.identity import system_identity
from tests.real.api import OpenCodeApi
from tests.real.durable import EXECUTABLE, PLUGIN, DurableStream, wait_until
from tests.real.opencode import RealOpenCode, stub_install
from tests.real.peer import FloodingPeer, calls, contexts, noise, strangers

# A shim starts at most one sidecar in 5 s a process: with several scenes in one, that adds up.
IMPATIENT = """
const spawned = { real: -Infinity };
Object.defineProperty(spawned, "atMs", { get: () => spawned.real - 4500, set: (ms) => { spawned.real = ms; } });
globalThis[Symbol.for("durable-stream.spawn")] = spawned;
"""

SMALL_DISK = "256m"
SMALLER_DISK = "64k"
_PULSE_S = 0.3


class Scene:
    """A project of a running OpenCode, with a plugin, a home and a command that may not start a sidecar yet."""

    def __init__(self, client: RealOpenCode, name: str, around: str = "", before: str = IMPATIENT) -> None:
        self.client = client
        self.root = client.root / "scenes" / name
        self.command = self.root / "command"
        self.durable = DurableStream(self.root / "home")
        self.durable.home.mkdir(parents=True, mode=0o700)
        self.on_small_disk = _mount(self.durable.home, SMALL_DISK)
        self.api = OpenCodeApi(self.root / "project")
        self.api.port = client.port
        self.api.log_tail = client.log_tail  # type: ignore[method-assign]
        plugins = self.api.project / ".opencode" / "plugin"
        plugins.mkdir(parents=True)
        stub_install(plugins.parent)
        (plugins / PLUGIN).write_text(self.durable.plugin(before, around, self.command))

    def __enter__(self) -> Scene:
        return self

    def __exit__(self, *_: object) -> None:
        """End the sidecar, unmount, remove everything."""
        self.close()

    def close(self) -> None:
        try:
            self.take_away()
        finally:
            _unmount_below(self.root)
            shutil.rmtree(self.root)

    def mend(self) -> None:
        """Allow sidecars to start from now on."""
        with suppress(FileExistsError):
            self.command.symlink_to(EXECUTABLE)

    def take_away(self) -> None:
        """Kill the sidecar, and prevent starts from now on."""
        self.command.unlink(missing_ok=True)

        def gone() -> bool:
            running = self.durable.running()
            if running not in (None, os.getpid()):
                with suppress(ProcessLookupError):  # it has just exited
                    os.kill(running, signal.SIGKILL)
            return running is None

        # One that was just starting is met a moment later.
        wait_until(gone, "the end of the sidecar")

    def linked(self) -> int:
        """Wait until the plugin is linked to a running sidecar, and return its pid."""
        self.mend()
        self.api.sessions()  # OpenCode loads a project's plugins when it is asked for it
        return self.durable.wait_linked()

    def spooled(self) -> list[Path]:
        return list((self.durable.home / "spool").iterdir())


Fault = Callable[[Scene], AbstractContextManager[None]]


@contextmanager
def absent(scene: Scene) -> Iterator[None]:
    """No sidecar: a running one is killed, and none can start."""
    scene.take_away()
    yield


@contextmanager
def refusing(scene: Scene) -> Iterator[None]:
    """``sidecar.json`` names a live process and a port where nobody listens."""
    scene.take_away()
    home = Home(scene.durable.home)
    home.create()
    home.ensure_token(system_identity().nonce)
    with closing(socket.socket()) as bound:
        bound.bind(("127.0.0.1", 0))  # bound, so that nobody else gets it, and never listening
        port = int(bound.getsockname()[1])
        home.write_info(SidecarInfo(os.getpid(), port, "none", "0", PROTOCOL, 0))
        try:
            yield
        finally:  # else the scene waits for the end of this process
            home.remove_info()


@contextmanager
def hung(scene: Scene) -> Iterator[None]:
    """A linked sidecar is paused."""
    sidecar = scene.linked()
    os.kill(sidecar, signal.SIGSTOP)
    yield
    os.kill(sidecar, signal.SIGCONT)


@contextmanager
def slow(scene: Scene) -> Iterator[None]:
    """A linked sidecar runs only briefly in each second, so every ack is late."""
    sidecar = scene.linked()
    ended = threading.Event()

    def pulse() -> None:
        while not ended.is_set():
            os.kill(sidecar, signal.SIGSTOP)
            ended.wait(_PULSE_S)
            os.kill(sidecar, signal.SIGCONT)
            ended.wait(_PULSE_S / 10)

    thread = threading.Thread(target=pulse, name="pulse")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def flooding(scene: Scene) -> Iterator[None]:
    """An authenticated peer sends endlessly and acknowledges nothing."""
    scene.take_away()
    with FloodingPeer(scene.durable.home, noise, calls, contexts, strangers) as peer:
        yield
        # Each kind had its turn: it was no quiet peer.
        wait_until(lambda: peer.links >= 4, "four links to the flooding peer")


@contextmanager
def spool_full(scene: Scene) -> Iterator[None]:
    """No sidecar, and a spool directory on a full disk."""
    scene.take_away()
    with _no_spool(scene, "full"):
        yield


@contextmanager
def spool_read_only(scene: Scene) -> Iterator[None]:
    """No sidecar, and a read-only spool directory."""
    scene.take_away()
    with _no_spool(scene, "read-only"):
        yield


@contextmanager
def hung_without_spool(scene: Scene) -> Iterator[None]:
    """A linked sidecar is paused, and the spool directory is on a full disk."""
    sidecar = scene.linked()
    # An open file would still take what comes.
    wait_until(lambda: not scene.spooled(), "the end of the spool")
    with _no_spool(scene, "full"):
        os.kill(sidecar, signal.SIGSTOP)
        yield
        os.kill(sidecar, signal.SIGCONT)


@contextmanager
def disk_full(scene: Scene) -> Iterator[None]:
    """The home is on a full disk: sidecars start, but neither they nor the spool can write."""
    scene.take_away()
    if scene.on_small_disk:
        _fill(scene.durable.home)
        scene.mend()
        yield
        (scene.durable.home / "filler").unlink()
    else:
        scene.command.write_text(f'#!/bin/sh\nulimit -f 0\nexec "{EXECUTABLE}" "$@"\n')
        scene.command.chmod(0o700)
        with _no_spool(scene, "full"):
            yield
        scene.command.unlink()


FAULTS: dict[str, Fault] = {
    "absent": absent,
    "refusing": refusing,
    "hung": hung,
    "slow": slow,
    "flooding": flooding,
    "spool full": spool_full,
    "spool read-only": spool_read_only,
    "disk full": disk_full,
}


def _mount(place: Path, size: str) -> bool:
    """Mount a small separate disk at ``place``; False if this user may not mount."""
    how = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", str(place)]
    return os.geteuid() == 0 and subprocess.run(how, capture_output=True, check=False).returncode == 0


def _unmount_below(place: Path) -> None:
    for path in sorted((p for p in place.rglob("*") if p.is_mount()), reverse=True):
        subprocess.run(["umount", "-l", str(path)], check=True, capture_output=True)


@contextmanager
def _no_spool(scene: Scene, how: str) -> Iterator[None]:
    spool = scene.durable.home / "spool"
    # Another spool may hold something: it stays where it is, out of reach.
    aside = spool.with_name("spool.aside")
    if spool.exists():
        spool.rename(aside)
    spool.mkdir(mode=0o700)
    if not _mount(spool, SMALLER_DISK):
        # Modes do not stop root, and nobody else may mount: what stops everybody is a file in the way.
        spool.rmdir()
        spool.touch(0o600)
        yield
        spool.unlink()
    else:
        if how == "full":
            _fill(spool)
        else:
            _remount(spool, "ro")
        yield
        subprocess.run(["umount", "-l", str(spool)], check=True, capture_output=True)
        spool.rmdir()
    if aside.exists():
        aside.rename(spool)


def _remount(place: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(place)], check=True, capture_output=True)


def _fill(place: Path) -> None:
    filler = os.open(place / "filler", os.O_WRONLY | os.O_CREAT, 0o600)
    with closing(os.fdopen(filler, "wb", buffering=0)) as file, suppress(OSError):
        free = os.statvfs(place)
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize)
        file.seek(0, os.SEEK_END)
        while file.write(b"\0" * 4096):
            continue
