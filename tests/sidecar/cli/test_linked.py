"""How ``status`` and ``doctor`` show the linked OpenCodes: each process once, and which one is headless."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sidecar.care.checks.check import scene_of
from sidecar.care.checks.recording import check_links
from sidecar.cli.printing.output import Output
from sidecar.cli.shared.state import print_status
from sidecar.home import Home

NOTHING: dict[str, Any] = {"problems": [], "notes": [], "asks": [], "work": []}
NONE: dict[str, Any] = NOTHING | {"home": "/home/x/.durable-stream", "running": True, "verdict": "All is well"}
LOG = {"head": -1, "pruned": 0, "streams": 0, "damaged": False}
SIDECAR = {"pid": 1, "port": 2, "version": "0.1.0", "uptime_ms": 3}


def link(pid: int, directory: str, *, delivers: bool = True, service: str = "") -> dict[str, Any]:
    named = {"pid": pid, "directory": directory, "opencode_version": "1.18.33"}
    return {**named, "delivers": delivers, "service": service}


def linked(capsys: pytest.CaptureFixture[str], *links: dict[str, Any], **more: Any) -> list[str]:
    """The lines of ``status`` about these links."""
    found = {"sidecar": SIDECAR, "links": list(links), "log": LOG, "spool": {"files": 0}, "held": 0, "gaps": 0}
    print_status(Output(), {**NONE, **found, **more})
    lines = capsys.readouterr().out.splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("linked"))
    last = next(n for n, line in enumerate(lines) if line.startswith("log"))
    return [line[9:] for line in lines[first:last]]


def test_the_headless_one_is_named_once_whatever_its_directories_are(capsys: pytest.CaptureFixture[str]) -> None:
    works = [link(7, f"/worktrees/int_{n}", delivers=False) for n in range(3)]
    assert linked(capsys, link(5, "/shop"), *works, headless=7) == [
        "OpenCode 1.18.33 in /shop, pid 5",
        "OpenCode 1.18.33, headless, for background work, pid 7",
    ]


def test_a_process_with_several_directories_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    links = [link(5, "/shop", delivers=False), link(5, "/shop"), link(5, "/blog", delivers=False)]
    assert linked(capsys, *links) == ["OpenCode 1.18.33 in /shop and 1 more, pid 5"]
    assert linked(capsys, link(5, "/a", delivers=False)) == ["OpenCode 1.18.33 in /a, pid 5, no hooks yet"]


def test_a_service_and_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    services = [{"registration": "r", "state": "read"}]
    assert linked(capsys, link(5, "", service="r"), services=services) == ["OpenCode 1.18.33, its service, pid 5, read"]
    assert linked(capsys) == ["no OpenCode"]


def test_doctor_counts_processes(tmp_path: Path) -> None:
    scene = scene_of(Home(tmp_path), quick=True)
    links = [link(7, f"/worktrees/int_{n}") for n in range(6)]
    (found,) = check_links(scene._replace(answer={"links": links, "headless": 7}))
    assert found.text == "1 OpenCode connected now, including the headless one"
    (found,) = check_links(scene._replace(answer={"links": [link(5, "/shop"), link(6, "/shop")], "headless": None}))
    assert found.text == "2 OpenCodes connected now"
