"""What a prompt costs the user: the real OpenCode under each fault, beside the same OpenCode without the plugin.

Two projects of one OpenCode are prompted in turn, so that both meet the same machine: one with the
plugin, one without. A prompt is one tool call and one answer of a scripted model that takes no time.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.report import Row
from tests.real.api import OpenCodeApi
from tests.real.faults import FAULTS, Scene
from tests.real.model_server import ModelServer
from tests.real.opencode import RealOpenCode
from tools.install_opencode import binary_path

PROMPTS = 9
PROMPT = f"CALL:bash {json.dumps({'command': 'true', 'description': 'd'})} THEN: SAY:done"


async def measure(directory: Path, seconds: float) -> list[Row]:
    """Prompts a second with a healthy sidecar and under each fault, against those without the plugin."""
    return await asyncio.to_thread(_measure)


def _measure() -> list[Row]:
    rows = []
    with (
        ModelServer() as model,
        RealOpenCode(binary_path(), model.port, config={"snapshot": False}) as client,
        Scene(client, "bench") as scene,
    ):
        # As the scene's project: without a repository.
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


@contextmanager
def healthy(scene: Scene) -> Iterator[None]:
    """A linked sidecar that works."""
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
