"""Which program the headless OpenCode is, when the OpenCode that asked has ended.

No real OpenCode: a copy of ``sleep`` with its name, which ends at once when it is to serve.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.home import Home
from sidecar.orchestrator.headless import Headless, HeadlessError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what another process runs")

SLEEP = shutil.which("sleep") or "sleep"


def opencode(directory: Path) -> Path:
    """A program called ``opencode``."""
    directory.mkdir()
    return Path(shutil.copy(SLEEP, directory / "opencode"))


async def started(headless: Headless, home: Path, pid: int | None) -> str:
    """The program that was started."""
    with pytest.raises(HeadlessError, match="ended with code"):
        await headless.link(str(home), pid)
    return str(json.loads((home / "headless.json").read_text())["executable"])


@pytest.fixture
def headless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Headless:
    monkeypatch.setenv("PATH", str(tmp_path))
    return Headless(Home(tmp_path), lambda: [], lambda: "secret", lambda: 0)


async def test_the_program_of_an_opencode_that_ended_is_remembered(headless: Headless, tmp_path: Path) -> None:
    programs = [opencode(tmp_path / name) for name in ("one", "other")]
    with pytest.raises(HeadlessError, match="no `opencode` was found"):
        await headless.link(str(tmp_path), None)
    pids = []
    for program in programs:
        with subprocess.Popen([str(program), "600"]) as process:
            while not Path(f"/proc/{process.pid}/environ").read_bytes():
                continue  # The system sets a new program's environment after Popen has returned.
            headless.know(process.pid)
            pids.append(process.pid)
            process.kill()
    assert await started(headless, tmp_path, pids[0]) == str(programs[0])
    assert await started(headless, tmp_path, pids[1]) == str(programs[1])
    # A person asked, or an OpenCode that this sidecar has never met: the one that linked last.
    assert await started(headless, tmp_path, None) == str(programs[1])
    # It was upgraded meanwhile, and the old program is gone.
    programs[0].unlink()
    assert await started(headless, tmp_path, pids[0]) == str(programs[1])


async def test_another_sidecar_knows_the_program_of_the_last_headless_opencode(
    headless: Headless, tmp_path: Path
) -> None:
    program = opencode(tmp_path / "one")
    (tmp_path / "headless.json").write_text(json.dumps({"pid": 1, "started_ms": 0, "executable": str(program)}))
    assert await started(headless, tmp_path, None) == str(program)
