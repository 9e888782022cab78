"""Background work may do what the OpenCode that asks for it may do, and no more: in real sandboxes of Linux.

In each sandbox a session tries what the sandbox forbids and what it allows, and so does its background work. What both
find must be the same, line for line.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.real.background import intents, spawns
from tests.real.durable import PLUGIN, DurableStream, wait_until
from tests.real.model_server import ModelServer
from tests.real.opencode import RealOpenCode
from tests.real.scripts import bash
from tools.install_bwrap import find
from tools.install_git import archive

pytestmark = [
    pytest.mark.real_opencode,
    pytest.mark.skipif(sys.platform != "linux", reason="these sandboxes are Linux's"),
]

HERE = Path(__file__).parent
PROBE = """
for place in $PLACES; do
    if (: > "$place/probe") 2>/dev/null; then echo "wrote $place"; rm "$place/probe"; else echo "no $place"; fi
done
if bash -c ": < /dev/tcp/127.0.0.1/$PORT" 2>/dev/null; then echo "reached a server"; fi
grep -E "^(Uid|Groups|Cap|NoNewPrivs|Seccomp)" /proc/self/status
readlink /proc/self/ns/*
ulimit -H -a
"""


class Sandboxes:
    """OpenCodes in sandboxes, which share a home, a directory and all variables, so only their sandboxes differ."""

    def __init__(self, client: RealOpenCode, durable: DurableStream, model: ModelServer, server: socket.socket) -> None:
        self.client, self.durable, self.root = client, durable, client.root
        self.guarded, self.model = client.root.with_name(f"{client.root.name}-guarded"), model
        self.guarded.mkdir()
        (client.root / "probe.sh").write_text(PROBE)
        self._port = server.getsockname()[1]

    def told(self, name: str) -> Path:
        """Where a probe writes what it found; it is complete when it is there."""
        return self.root / f"{name}.txt"

    def probe(self, name: str) -> str:
        places = f"PLACES='{self.root} {self.guarded} /tmp' PORT={self._port}"
        return f"{places} sh {self.root}/probe.sh > {self.told(name)}.new; mv {self.told(name)}.new {self.told(name)}"

    @contextmanager
    def asking(self, name: str, before: list[str], work: str = "", isolation: str = "shared") -> Iterator[None]:
        """An OpenCode in a sandbox that tries, then has background work try, or do ``work``; it stays open."""
        over = self.root / f"{name}.over"
        script = " THEN: ".join(
            [
                bash(self.probe(f"{name}-direct")),
                spawns(bash(work or self.probe(f"{name}-background")), name, isolation=isolation),
                bash(f"until [ -e {over} ]; do sleep 0.1; done"),
                "SAY:over",
            ]
        )
        with (self.root / f"{name}.out").open("wb") as out:
            process = subprocess.Popen(
                [*before, str(self.client.binary), "run", script],
                cwd=self.client.project,
                env=self.client.environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        try:
            yield
        finally:
            over.touch()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def both(self, name: str, *others: Path) -> str:
        """What the session, its background work and ``others`` found, which is the same."""
        found = {
            self._found(name, each) for each in (self.told(f"{name}-direct"), self.told(f"{name}-background"), *others)
        }
        assert len(found) == 1, found
        return found.pop()

    def _found(self, name: str, told: Path) -> str:
        wait_until(lambda: told.exists() or self.failed(name), f"what {told.stem} found", 60)
        return told.read_text()

    def state(self, name: str) -> str:
        """The state of the work of this name; empty if there is none yet."""
        return next((str(each["state"]) for each in intents(self.durable) if each["title"] == name), "")

    def failed(self, name: str) -> bool:
        """Raises if the work of this name ended without telling anything."""
        for each in intents(self.durable):
            if each["title"] == name and each["ended"] is not None and each["state"] != "completed":
                raise AssertionError(each)
        return False


@pytest.fixture(scope="module")
def sandboxes(opencode_binary: Path, model: ModelServer, durable: DurableStream) -> Iterator[Sandboxes]:
    durable.home.mkdir(mode=0o700)
    plugins, config = {PLUGIN: durable.plugin()}, {"permission": {"external_directory": "allow"}}
    with (
        RealOpenCode(
            opencode_binary, model.port, config=config, plugins=plugins, plugin_scope="global", serve=False
        ) as client,
        socket.create_server(("127.0.0.1", 0)) as server,
    ):
        made = Sandboxes(client, durable, model, server)
        setup = json.dumps([made.probe("setup")])
        (durable.home / "config.toml").write_text(f"[phantom]\nsetup = {setup}\n")
        durable.start()
        yield made
        shutil.rmtree(made.guarded)
        durable.end_with(client)


@pytest.fixture(scope="module")
def bwrap() -> Path:
    if (found := find()) is None:
        if archive() is None:
            pytest.skip("bubblewrap is not installed, and this system has no Debian archive")
        pytest.fail("bubblewrap is not installed: run `make bwrap`", pytrace=False)
    if subprocess.run([found, "--ro-bind", "/", "/", "true"], check=False).returncode:
        pytest.skip("this machine lets nobody make a sandbox")
    return found


def test_mounts_limits_and_landlock_which_is_in_no_file(sandboxes: Sandboxes) -> None:
    """Two sandboxes of which the system tells the same live at the same time, but one forbids more."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("this user may not mount")
    landlock = [sys.executable, str(HERE / "landlock.py")]
    if subprocess.run([*landlock, "/", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this system has no Landlock")
    guarded = sandboxes.guarded
    mount = f"mount --bind {guarded} {guarded} && mount -o remount,ro,bind {guarded} && echo mounted && exec sleep 600"
    with (
        subprocess.Popen(["unshare", "-m", "sh", "-c", mount], stdout=subprocess.PIPE) as mounts,
        ExitStack() as ends,
    ):
        ends.callback(mounts.kill)
        assert mounts.stdout and mounts.stdout.readline() == b"mounted\n"
        before = ["nsenter", "-m", "-t", str(mounts.pid), "env", "-C", str(sandboxes.client.project)]
        before += ["prlimit", "--nproc=5000", *landlock]
        ends.enter_context(sandboxes.asking("narrow", [*before, str(sandboxes.root)]))
        narrow = sandboxes.both("narrow")  # OpenCode's database is there now: two cannot make it at once
        ends.enter_context(sandboxes.asking("wide", [*before, "/tmp"]))
        wide = sandboxes.both("wide")
    assert "no /tmp" in narrow and "wrote /tmp\n" in wide and f"no {guarded}" in wide
    assert "NoNewPrivs:\t1" in wide and "5000" in wide
    assert narrow.partition("reached")[2] == wide.partition("reached")[2]


def test_work_of_a_sandbox_and_its_setup_run_there_and_in_no_other_when_it_ended(
    sandboxes: Sandboxes, bwrap: Path
) -> None:
    """A sandbox ends in the middle of its work, and a wider one comes, which the system gives the same numbers."""
    root, go = sandboxes.root, sandboxes.root / "go"
    end = ["--dev", "/dev", "--proc", "/proc", "--die-with-parent"]
    narrow = ["--ro-bind", "/", "/", "--bind", str(root), str(root), "--bind", *[str(sandboxes.durable.home)] * 2]
    work = f"{sandboxes.probe('bubble-background')}; until [ -e {go} ]; do sleep 0.1; done; {sandboxes.probe('waited')}"
    relay, sock = str(HERE / "relay.py"), f"{root}/model.sock"
    inside = f'{sys.executable} {relay} {sandboxes.model.port} {sock} & exec "$@"'
    apart = ["--unshare-pid", "--unshare-net", "sh", "-c", inside, "x"]
    with (
        subprocess.Popen([sys.executable, relay, sock, str(sandboxes.model.port)]) as outside,
        ExitStack() as ends,
        sandboxes.asking("bubble", [str(bwrap), *narrow, *end, *apart], work, "copy"),
    ):
        ends.callback(outside.kill)
        found = sandboxes.both("bubble", sandboxes.told("setup"))
    wait_until(lambda: sandboxes.state("bubble") != "running", "work that waits", 60)
    go.touch()
    with sandboxes.asking("wider", [str(bwrap), "--bind", "/", "/", *end]):
        wider = sandboxes.both("wider")
    assert f"no {sandboxes.guarded}" in found and "no /tmp" in found and "reached" not in found
    assert f"wrote {sandboxes.guarded}" in wider and "reached" in wider
    assert not sandboxes.told("waited").exists() and sandboxes.state("bubble") not in ("running", "completed")
