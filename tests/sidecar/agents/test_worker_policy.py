"""``[worker] policy``: the configured policy retries effects; one that cannot be used is listed."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.agents.effects.policy import DEFAULT_POLICY
from sidecar.config import WorkerConfig
from sidecar.home import Home
from sidecar.worker import Worker
from streams.identity import seeded_identity
from tests.memory import MemoryStore

POLICY = """
class Once:
    def max_attempts(self, effect): return 1
    def backoff_seconds(self, *, effect, attempt): return 0.0
    def idempotency_key(self, *, run, node, effect): return f"{run}:{node}"
    def deadline_seconds(self, effect): return 1.0

half = object()
"""


@pytest.mark.parametrize(("spec", "is_used"), [("policy.py:Once", True), ("policy.py:half", False), ("no:one", False)])
def test_the_policy_of_the_configuration_is_used_or_listed(tmp_path: Path, spec: str, is_used: bool) -> None:
    (tmp_path / "policy.py").write_text(POLICY)
    worker = Worker(
        Home(tmp_path), WorkerConfig(policy=spec), MemoryStore(), seeded_identity(1), clean=lambda value: value
    )
    used = worker.runtime.effects._policy
    assert (used is not DEFAULT_POLICY) == is_used
    assert [problem["spec"] for problem in worker.problems] == ([] if is_used else [spec])
