"""The headless OpenCodes 1, in which phantoms run.

The OpenCode that asks for work starts the headless one, as its own child (see ``plugin-shim/src/headless.js``). So the
work has that one's environment, sandbox and limits, and nothing is copied. The sidecar reaches a headless OpenCode only
through its plugin, and finds it again after a restart by ``headless.json``.

Work belongs to an *identity*: what a process may do. Processes with equal keys share an identity, and a headless
OpenCode, if each can see the other, because nothing else tells some sandboxes apart. A sandbox may also get the numbers
of one that ended. So an identity ends with its last linked process, and its work then waits. Only one outside of all
sandboxes stays.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from pydantic import Field

from bridge.opencode.link.protocol import CallError
from sidecar.background.hosts.calling import CALL_SECONDS, call
from sidecar.background.hosts.facts import read_facts
from sidecar.background.hosts.host import HostAbsent, HostError
from sidecar.background.hosts.hung import Watch, started
from sidecar.background.hosts.identity import NOBODY, digest, kernel_lines, stays
from sidecar.background.hosts.starter import Started, find_program, own_keys
from sidecar.components import until
from sidecar.home import Home
from sidecar.link.local import PEER
from sidecar.processes import space_of
from sidecar.registry import Args
from streams.system.files import write_durably
from streams.system.threads import in_thread

if TYPE_CHECKING:
    from sidecar.link.links import ShimConnection

log = logging.getLogger("sidecar.background")

START_SECONDS: Final = 90.0
"""How long a headless OpenCode may take to open its first directory; its starter kills it before that."""

LINK_SECONDS: Final = 30.0

KEPT: Final = 256
"""Of how many processes the identity is remembered."""

READY: Final = {"hosted": True, "stays": True}
"""What ``ready_for`` says where work needs nothing of the terminal that asks."""

READY_MEANS: Final = (
    "`hosted`: whether an OpenCode can run its work, or the sidecar start one; `stays`: if not, it may wait"
)

_SEE_SECONDS: Final = 5.0


class Server(NamedTuple):
    """A headless OpenCode. ``pid`` and ``start`` are as its starter named them, and count in the pid namespace
    ``space``; 0 and empty while they are unknown."""

    id: str
    identity: str
    pid: int = 0
    start: str = ""
    space: str = ""


class Process(NamedTuple):
    """An OpenCode that linked: its identity and its program."""

    identity: str
    program: str


class Terminal(Args):
    """What a command at a terminal says of itself."""

    directory: str = Field(max_length=8192, description="the project, absolute")
    kernel: str = Field(max_length=100, description="a key of what the system allows it")
    environment: str = Field(max_length=100, description="a key of its variables")
    sees: str = Field(default="", max_length=100, description="when the sidecar started, as the command sees it")
    headless: str = Field(default="", max_length=100, description="the id of a headless OpenCode that it started")


class Headless:
    """The headless OpenCodes of a home. ``links`` returns the open links. ``has_plugin`` says whether an OpenCode that
    the sidecar starts for a directory would load the plugin."""

    def __init__(
        self,
        home: Home,
        links: Callable[[], Iterable[ShimConnection]],
        nonce: Callable[[], str],
        has_plugin: Callable[[Path], bool] = lambda _directory: True,
    ) -> None:
        self._home, self._links, self._nonce, self._has_plugin = home, links, nonce, has_plugin
        self._file = home.path / "headless.json"
        self._servers, self._known = _read(self._file)
        self._starting, self._naming = asyncio.Lock(), asyncio.Lock()
        self._space = space_of("pid")
        self._watch = Watch(self._space, self._servers)
        self._writing = asyncio.Lock()
        self.killed = 0
        """How many hung since this sidecar started, and were killed."""

    # --- identities ---

    async def know(self, link: ShimConnection) -> str:
        """The identity of a process that linked."""
        async with self._naming:
            if (name := self.identity_of(link)) is None:
                name = await self._name(link)
            if own := link.identity.headless:  # perhaps started from a terminal
                start = await _sees(link, link.pid)
                self._servers[own] = Server(own, name, link.pid, start, link.identity.pid_space)
            if link.boot_id not in self._known:
                self._known[link.boot_id] = Process(name, link.identity.program)
                while len(self._known) > KEPT:
                    del self._known[next(iter(self._known))]
                await self._write()
        return name

    def identity_of(self, link: ShimConnection) -> str | None:
        """The identity of a linked process, if it is known."""
        server = self._servers.get(link.identity.headless)
        known = server or self._known.get(link.boot_id)
        return known.identity if known is not None else None

    async def _name(self, link: ShimConnection) -> str:
        keys = (link.identity.kernel, link.identity.environment)
        if await self._is_outside(link):
            return _named("env", *keys)
        for other in self._open():
            name, theirs = self.identity_of(other), (other.identity.kernel, other.identity.environment)
            if name and theirs == keys and await _see_each_other(link, other):
                return name
        # One that a command started has nobody else in its sandbox from the beginning, and ends when it is idle.
        return _named("cmd" if link.identity.headless else "box", *keys, link.boot_id)

    async def _is_outside(self, link: ShimConnection) -> bool:
        """Whether a process is in no sandbox. It must see the sidecar, because no file tells of Landlock."""
        if not self._space or link.identity.pid_space != self._space:
            return False
        return await self._stays(link.pid, link.identity.kernel) and await _sees(link, os.getpid()) != ""

    async def _stays(self, pid: int, kernel: str) -> bool:
        facts = await asyncio.to_thread(read_facts, pid)
        return stays(facts) and digest(self._home.read_token(), kernel_lines(facts)) == kernel

    async def own(self) -> str:
        """The identity of the sidecar itself; empty if it is in a sandbox."""
        keys = await asyncio.to_thread(own_keys, self._home.read_token())
        return _named("env", *keys) if await self._stays(os.getpid(), keys[0]) else ""

    async def of_terminal(self, terminal: Terminal) -> str:
        """The identity of a command at a terminal; empty if it is in a sandbox and started no headless OpenCode."""
        if terminal.headless:
            link = await self._until_linked(terminal.headless)
            return await self.know(link) if link is not None else ""
        is_seen = terminal.sees == started(os.getpid()) != ""
        outside = is_seen and await self._stays(PEER.get() or 0, terminal.kernel)
        return _named("env", terminal.kernel, terminal.environment) if outside else ""

    async def ready_for(self, terminal: Terminal) -> dict[str, bool]:
        """``hosted``: whether work of a terminal can run without its help. ``stays``: if not, whether it may wait."""
        identity = await self.of_terminal(terminal)
        return {
            "hosted": identity != "" and await self.can_host(identity, terminal.directory),
            "stays": identity != "",
        }

    async def can_host(self, identity: str, directory: str) -> bool:
        """Whether a headless OpenCode of an identity runs, or can be started without anybody's help."""
        if self._linked(identity) is not None or self._askers(identity):
            return True
        mine = identity == await self.own() and find_program(self._program(identity)) is not None
        return mine and await asyncio.to_thread(self._has_plugin, Path(directory))

    def was(self, boot: str) -> str:
        """The identity of a process that linked at some time."""
        known = self._known.get(boot)
        return known.identity if known is not None else NOBODY

    # --- processes ---

    @property
    def pids(self) -> frozenset[int]:
        return frozenset(link.pid for link in self._open() if link.identity.headless)

    async def runs(self, identity: str) -> bool:
        """Whether the headless OpenCode of an identity runs, linked or not."""
        return self._linked(identity) is not None or await self._unlinked(identity) is not None

    async def link(self, directory: str, identity: str) -> ShimConnection:
        """The link to the headless OpenCode of an identity, for a directory; one is started if needed.

        Raises:
            HostAbsent: no process that could start it is linked.
            HostError: it did not start, or did not link.
        """
        async with self._starting:
            found = self._linked(identity) or await self._back(identity) or await self._start(identity, directory)
        return await self._at(found, directory)

    async def _at(self, found: ShimConnection, directory: str) -> ShimConnection:
        """The link of the same process for another directory. OpenCode loads the plugin with the first request."""

        def near() -> ShimConnection | None:
            mine = (link for link in self._open() if link.boot_id == found.boot_id)
            return next((link for link in mine if link.directory == directory), None)

        if near() is None:
            await call(found, "session.list", {"query": {"directory": directory, "limit": 1}})
            await until(near, LINK_SECONDS)
        if (link := near()) is None:
            raise HostError(f"the plugin of the headless OpenCode did not connect to the sidecar for {directory}")
        return link

    def _linked(self, identity: str) -> ShimConnection | None:
        own = (link for link in self._open() if link.identity.headless)
        return next((link for link in own if self.identity_of(link) == identity), None)

    async def _unlinked(self, identity: str) -> Server | None:
        for server in [each for each in self._servers.values() if each.identity == identity]:
            if await self._lives(server):
                return server
            del self._servers[server.id]
        return None

    async def _lives(self, server: Server) -> bool:
        if server.space == self._space:
            return started(server.pid) == server.start != ""
        # Its pid means something only to processes in its own namespace.
        for link in self._open():
            if link.identity.pid_space == server.space and self.identity_of(link) == server.identity:
                return await _sees(link, server.pid) == server.start
        return False

    async def _back(self, identity: str) -> ShimConnection | None:
        """The link of a headless OpenCode that runs and has not linked again yet."""
        if await self._unlinked(identity) is None:
            return None
        await until(lambda: self._linked(identity), LINK_SECONDS)
        if (link := self._linked(identity)) is None:
            raise HostError("the headless OpenCode does not connect to the sidecar")
        return link

    def _askers(self, identity: str) -> list[ShimConnection]:
        return [link for link in self._open() if not link.identity.headless and self.identity_of(link) == identity]

    def _program(self, identity: str) -> str:
        """The program of the last process of an identity."""
        return next((each.program for each in reversed(self._known.values()) if each.identity == identity), "")

    async def _start(self, identity: str, directory: str) -> ShimConnection:
        server = Server(self._nonce()[:16], identity)
        if askers := self._askers(identity):
            await self._ask(askers[-1], server, directory)
        elif identity == await self.own() and (program := find_program(self._program(identity))) is not None:
            child = await asyncio.to_thread(Started, program, server.id, self._home.path, self._nonce())
            pid = child.process.pid
            self._servers[server.id] = server._replace(pid=pid, start=started(pid), space=self._space)
            await self._write()
            log.info("started a headless OpenCode (pid %d)", pid)
            await child.open(directory)
        else:
            raise HostAbsent("no OpenCode is open that may do what the one that asked for this work may do")
        if (link := await self._until_linked(server.id)) is None:
            raise HostError("the headless OpenCode started, but its plugin did not connect to the sidecar")
        return link

    async def _until_linked(self, name: str) -> ShimConnection | None:
        def linked() -> ShimConnection | None:
            return next((link for link in self._open() if link.identity.headless == name), None)

        await until(linked, LINK_SECONDS)
        return linked()

    async def _ask(self, asker: ShimConnection, server: Server, directory: str) -> None:
        """Have an OpenCode start a headless one, and wait until that one has opened a directory."""
        self._servers[server.id] = server  # now, because the answer may be lost
        started_as = await call(asker, "headless.start", {"id": server.id, "directory": directory})
        server = server._replace(pid=started_as["pid"], start=started_as["start"], space=asker.identity.pid_space)
        self._servers[server.id] = server
        await self._write()
        log.info("an OpenCode (pid %d) started a headless one (pid %d)", asker.pid, server.pid)
        deadline = asyncio.get_running_loop().time() + START_SECONDS
        while asyncio.get_running_loop().time() < deadline:
            try:
                failed = await asker.call("headless.opened", {"id": server.id}, timeout=CALL_SECONDS)
            except CallError as error:
                if error.code == "timeout":
                    continue
                break  # the one that asked has ended, so only the link tells
            if not failed:
                return
            self._servers.pop(server.id, None)
            raise HostError(f"the headless OpenCode did not start: {failed}")

    # --- ends ---

    async def watch(self) -> list[str]:
        """Look once at each headless OpenCode without a link, and end what hangs; see ``hung.py``. Returns the
        identities of those that were killed."""
        linked = {link.identity.headless for link in self._open()}
        done = await asyncio.to_thread(self._watch.look, list(self._servers.values()), linked)
        killed = [server for server in (self._servers.get(key) for key, act in done.items() if act == "kill") if server]
        for key, act in done.items():
            what = "killed, with what it started" if act == "kill" else "asked to continue"
            log.warning("the headless OpenCode %s did not answer, and made no progress: it was %s", key, what)
        for server in killed:
            self._servers.pop(server.id, None)
        if killed:
            self.killed += len(killed)
            await self._write()
        return [server.identity for server in killed]

    @property
    def silent(self) -> int:
        """For how many looks, one in a second, a headless OpenCode that runs has had no link; 0 if all have one."""
        return max((pulse.alone for pulse in self._watch.pulses.values()), default=0)

    def idle(self, wanted: Collection[str]) -> frozenset[str]:
        """The identities whose headless OpenCode is linked and of which no work is ``wanted``."""
        own = (link for link in self._open() if link.identity.headless)
        return frozenset(self.identity_of(link) or "" for link in own).difference(wanted)

    def left(self) -> frozenset[str]:
        """The identities of sandboxes in which only the headless OpenCode is left."""
        askers = {self.identity_of(link) for link in self._open() if not link.identity.headless}
        return frozenset(name for name in self.idle(()) if name.startswith("box_") and name not in askers)

    async def rest(self, wanted: Collection[str]) -> list[int]:
        """End each headless OpenCode of which no work is ``wanted``. Returns the processes of the others."""
        await self.stop({each.identity for each in self._servers.values()}.difference(wanted))
        own = (link for link in self._open() if link.identity.headless)
        return sorted({link.pid for link in own if self.identity_of(link) in wanted})

    async def stop(self, only: Collection[str]) -> None:
        """End the headless OpenCodes of some identities."""
        ending = {each.id: each for each in self._servers.values() if each.identity in only}
        # What runs in a sandbox that ended would go on with work that another OpenCode may resume.
        boxes = [each for each in ending.values() if not each.identity.startswith("env_")]
        await asyncio.to_thread(self._watch.end_below, boxes)
        for link in [each for each in self._open() if each.identity.headless in ending]:
            with suppress(CallError):  # it ends or has ended
                await link.call("headless.end", {}, timeout=_SEE_SECONDS)
            ending.pop(link.identity.headless, None)
        for server in ending.values():
            if server.space == self._space and await self._lives(server):
                with suppress(ProcessLookupError):
                    os.kill(server.pid, signal.SIGTERM)
        self._servers = {key: each for key, each in self._servers.items() if each.identity not in only}
        await self._write()

    def _open(self) -> list[ShimConnection]:
        return [link for link in self._links() if link.is_open and not link.identity.service]

    async def _write(self) -> None:
        async with self._writing:
            about = {"servers": [each._asdict() for each in self._servers.values()], "processes": self._known}
            await in_thread(write_durably, self._file, json.dumps(about).encode())  # a draft has one writer


def _read(file: Path) -> tuple[dict[str, Server], dict[str, Process]]:
    try:
        found = json.loads(file.read_text())
        servers = [Server(**each) for each in found["servers"]]
        return {each.id: each for each in servers}, {boot: Process(*each) for boot, each in found["processes"].items()}
    except (OSError, ValueError, KeyError, TypeError):
        return {}, {}  # there was none yet


def _named(kind: str, *keys: str) -> str:
    return f"{kind}_{sha256(':'.join(keys).encode()).hexdigest()[:24]}"


async def _see_each_other(one: ShimConnection, other: ShimConnection) -> bool:
    return await _sees(one, other.pid) != "" and await _sees(other, one.pid) != ""


async def _sees(link: ShimConnection, pid: int) -> str:
    """When a process started, as another one sees it; empty if that one cannot look into it."""
    try:
        return str(await link.call("headless.sees", {"pid": pid}, timeout=_SEE_SECONDS))
    except CallError:
        return ""
