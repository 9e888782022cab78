"""The plugin's cost to the user: prompts and starts of the real OpenCode, with and without the plugin.

One OpenCode gets prompts for two projects in turn, one with the plugin and one without, so that both
meet the same conditions. A prompt is one tool call and one answer of a scripted model that takes no time.
Starts are measured in a namespace without a network, alternately with and without the plugin.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.report import Row
from tests.real.api import OpenCodeApi
from tests.real.faults import FAULTS, Scene
from tests.real.model_server import ModelServer
from tests.real.offline import namespace_command
from tests.real.opencode import RealOpenCode
from tools.install_opencode import binary_path

PROMPTS = 9
STARTS = 3
START_FLOOR, START_AIM = 0.5, 0.8
"""The floor means that starts with the plugin take at most twice as long as those without it."""
PROMPT = f"CALL:bash {json.dumps({'command': 'true', 'description': 'd'})} THEN: SAY:done"


async def measure(directory: Path, seconds: float) -> list[Row]:
    """Measure prompts per second with a healthy sidecar and under each fault, against those without the plugin."""
    return [*await asyncio.to_thread(_measure), await asyncio.to_thread(_measure_starts, directory / "starts")]


def _measure() -> list[Row]:
    rows = []
    with (
        ModelServer() as model,
        RealOpenCode(binary_path(), model.port, config={"snapshot": False}, lean=False) as client,
        Scene(client, "bench") as scene,
    ):
        # The plain directory has no git repository, because the scene's project has none either.
        plain = OpenCodeApi(_directory(client.root / "plain"))
        plain.port = client.port
        for state, fault in {"recorded": healthy, **FAULTS}.items():
            _prompt_times([scene.api, plain], 1)
            with fault(scene):
                ours, theirs = _prompt_times([scene.api, plain], PROMPTS)
            scene.linked()
            with_it, without = 1 / statistics.median(ours), 1 / statistics.median(theirs)
            rows.append(Row(f"prompts in OpenCode, {state}", with_it, without, "without plugin"))
    return rows


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
def healthy(scene: Scene) -> Iterator[None]:
    """A working, linked sidecar."""
    scene.linked()
    yield


def _prompt_times(projects: list[OpenCodeApi], count: int) -> list[list[float]]:
    sessions = [project.create_session() for project in projects]
    times: list[list[float]] = [[] for _ in projects]
    for _ in range(count):
        for project, session, taken in zip(projects, sessions, times, strict=True):
            start = time.perf_counter()
            project.prompt(session, PROMPT)
            taken.append(time.perf_counter() - start)
    return times


def _directory(path: Path) -> Path:
    path.mkdir()
    return path
