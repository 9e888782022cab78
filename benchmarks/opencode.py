"""The plugin's cost to the user: prompts and starts of the real OpenCodes, with and without the plugin.

In each round, a project without the plugin and one in each state of the sidecar, spool and disk get a prompt, in random
order. A prompt is one tool call and one answer of a scripted model that takes no time. So each round makes a pair of
times for each state, and load, which changes slowly, meets both.
Starts are measured in a namespace without a network, alternately with and without the plugin.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.limits import paired
from benchmarks.report import Row
from tests.real.api import OpenCodeApi
from tests.real.faults import FAULTS, Fault, Scene
from tests.real.model_server import ModelServer
from tests.real.offline import namespace_command
from tests.real.opencode import RealOpenCode
from tests.real.opencode2 import RealOpenCode2
from tools.install_opencode import VERSION_2, binary_path

PROMPTS = 60
WARM_UP = 5
FRESH = 8
"""New sessions come after as many prompts, because each prompt of a session takes longer than the one before."""
REST_S = 0.05
"""After each prompt, so that what OpenCode and a sidecar still have to do slows no other state's prompt."""
PROMPT_FLOOR, PROMPT_AIM = 0.9, 0.97
STARTS = 3
START_FLOOR, START_AIM = 0.5, 0.8
"""The floor means that starts with the plugin take at most twice as long as those without it."""
PLAIN = "without plugin"
FLOODING = "flooding"
PEER = """
import pathlib, signal, sys
from tests.real.peer import FloodingPeer, calls, contexts, noise, strangers
with FloodingPeer(pathlib.Path(sys.argv[1]), noise, calls, contexts, strangers):
    print(flush=True)
    signal.pause()
"""


async def measure(directory: Path, seconds: float) -> list[Row]:
    """Measure prompts in each state and starts against those without the plugin."""
    rows = await asyncio.to_thread(_measure, "1") + await asyncio.to_thread(_measure, "2")
    return [*rows, await asyncio.to_thread(_measure_starts, directory / "starts")]


def _measure(major: str) -> list[Row]:
    with ModelServer() as model, ExitStack() as stack:
        peers: list[subprocess.Popen[bytes]] = []

        @contextmanager
        def flooding(scene: Scene) -> Iterator[None]:
            scene.take_away()
            with _flooding_peer(scene.durable.home) as peer:
                peers.append(peer)
                yield

        faults: dict[str, Fault] = {"recorded": _healthy, **FAULTS, FLOODING: flooding}
        client = _start(stack, major, model)
        projects = {PLAIN: _project(client, client.root / "plain")}
        projects[PLAIN].project.mkdir()
        for state, fault in faults.items():
            # A service of OpenCode 2 gives each plugin the events of all its projects, so each state has its own.
            scene = stack.enter_context(
                Scene(client if major == "1" else _start(stack, major, model), state, before="")
            )
            scene.api = _project(scene.client, scene.api.project)
            scene.mend()
            scene.durable.start()
            stack.enter_context(fault(scene))
            projects[state] = scene.api
        script = f"CALL:{'bash' if major == '1' else 'shell'} " + json.dumps({"command": "true", "description": "d"})
        times = prompt_times(projects, f"{script} THEN: SAY:done", peers)
    rate = 1 / statistics.median(times[PLAIN])
    rows = []
    for state in faults:
        ratio, interval = paired(times[state], times[PLAIN])
        label = f"prompts in OpenCode {major}, {state}"
        rows.append(Row(label, rate * ratio, rate, PLAIN, PROMPT_FLOOR, PROMPT_AIM, interval=interval))
    return rows


def prompt_times(
    projects: Mapping[str, OpenCodeApi], text: str, peers: list[subprocess.Popen[bytes]]
) -> dict[str, list[float]]:
    """Return each project's seconds for its prompts, one of each round. Peers run only for the flooded project."""
    times: dict[str, list[float]] = {state: [] for state in projects}
    sessions: dict[str, str] = {}
    for number in range(WARM_UP + PROMPTS):
        if number % FRESH == 0:
            sessions = {state: project.create_session() for state, project in projects.items()}
        for state in random.sample(list(projects), len(projects)):
            for peer in peers if state == FLOODING else ():
                peer.send_signal(signal.SIGCONT)
            start = time.perf_counter()
            projects[state].prompt(sessions[state], text)
            times[state].append(time.perf_counter() - start)
            for peer in peers:
                peer.send_signal(signal.SIGSTOP)
            time.sleep(REST_S)
    return {state: taken[WARM_UP:] for state, taken in times.items()}


@contextmanager
def _flooding_peer(home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A peer that floods the plugin, in its own process, which can be suspended."""
    peer = subprocess.Popen([sys.executable, "-c", PEER, str(home)], stdout=subprocess.PIPE)
    assert peer.stdout is not None
    try:
        peer.stdout.readline()
        yield peer
    finally:
        peer.kill()
        peer.wait()


def _start(stack: ExitStack, major: str, model: ModelServer) -> RealOpenCode:
    make, binary = (RealOpenCode, binary_path()) if major == "1" else (RealOpenCode2, binary_path(VERSION_2))
    return stack.enter_context(make(binary, model.port, config={"snapshot": False}, lean=False))


class _Project2(OpenCodeApi):
    """A project of OpenCode 2's service, which the faults use like one of OpenCode 1."""

    def __init__(self, client: RealOpenCode2, project: Path) -> None:
        super().__init__(project)
        self.client = client

    def sessions(self) -> list[dict[str, Any]]:
        """Load the project's plugins, as a terminal does."""
        self.client.api("GET", f"/api/model?location[directory]={self.project}")
        return []

    def create_session(self, title: str = "test", **body: Any) -> str:
        return self.client.new_session(self.project)

    def prompt(self, session: str, text: str, **more: Any) -> dict[str, Any]:
        self.client.prompt(session, text)
        self.client.api("POST", f"/api/experimental/session/{session}/wait")
        return {}


def _project(client: RealOpenCode, project: Path) -> OpenCodeApi:
    if isinstance(client, RealOpenCode2):
        return _Project2(client, project)
    api = OpenCodeApi(project)
    api.port = client.port
    return api


def _measure_starts(root: Path) -> Row:
    """Compare the median of three starts with the plugin to that of three without, alternating."""
    namespace = namespace_command()
    if namespace is None:
        raise RuntimeError("no network namespace: neither `unshare -n` nor `unshare -rn` is allowed here")
    turn = [{"case": "without"}, {"do": ["install"]}, {"case": "with"}, {"do": ["uninstall"]}]
    plan = [{"make": "extra"}, {"case": "first"}, *(turn * STARTS)]
    wanted = {"binary": str(binary_path()), "root": str(_directory(root)), "home": str(root / "durable"), "starts": 1}
    done = subprocess.run(
        [*namespace, sys.executable, "-m", "tests.real.offline"],
        input=json.dumps(wanted | {"plan": plan}),
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
        check=True,
    )
    seconds = json.loads(done.stdout)["seconds"]
    with_it, without = (1 / statistics.median(seconds[case]) for case in ("with", "without"))
    return Row(
        "starts of OpenCode without a network", with_it, without, "without plugin", floor=START_FLOOR, aim=START_AIM
    )


@contextmanager
def _healthy(scene: Scene) -> Iterator[None]:
    """A working, linked sidecar."""
    scene.linked()
    yield


def _directory(path: Path) -> Path:
    path.mkdir()
    return path
