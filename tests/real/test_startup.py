"""The plugin costs OpenCode's start nothing without a network: real starts in a namespace that has loopback alone.

OpenCode waits for npm in each of its config directories as soon as there is any plugin, which takes over a
minute there. The quickest of three starts is compared with the slowest one of the same OpenCode without a plugin, in
one run, since other work on the machine makes a start longer and never shorter; and not one may wait as for npm.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sidecar.npm import LOCK_TEXT, RC_TEXT
from tests.real.offline import START_LIMIT_S, namespace_command

pytestmark = pytest.mark.real_opencode

STARTS = 3
MOST = 3.0
"""Times the start without a plugin."""
NPM_WAIT_S = 60.0
"""A start that waits for npm takes longer than this, on the quickest machine too."""

SEEN = ["config/opencode", "project/.opencode", "home", "extra"]
GLOBAL, PROJECT = "plugin for every project", "plugin in the project alone, among other plugins"
PLAN: list[dict[str, Any]] = [
    *({"make": name} for name in ("extra", "home/.opencode", "project/.opencode")),
    {"case": "no plugin"},
    {"tree": SEEN},
    # Every directory that OpenCode looks into is there and bare.
    {"do": ["install"]},
    {"case": GLOBAL},
    {"tree": SEEN},
    {"do": ["uninstall"]},
    {"tree": SEEN},
    # Others have packages: a stub would keep them from being installed.
    {"write": "project/.opencode/package.json", "text": '{"dependencies": {"zod": "*"}}\n'},
    {"write": "project/.opencode/.npmrc", "text": "save-exact=true"},
    {"make": "project/.opencode/plugins"},
    {"write": "project/.opencode/plugins/other.js", "text": "export default async () => ({})\n"},
    {"tree": SEEN},
    {"do": ["install", "--project", "."]},
    {"case": PROJECT},
    {"tree": SEEN},
    {"sessions": 2 * STARTS},
    {"do": ["uninstall", "--project", "."]},
    {"tree": SEEN},
]


@pytest.fixture(scope="module")
def found(opencode_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came of the plan. Where the system allows no namespace the tests fail: a skip would hide the loss."""
    namespace = namespace_command()
    if namespace is None:
        pytest.fail("no network namespace: neither `unshare -n` nor `unshare -rn` is allowed here", pytrace=False)
    root = tmp_path_factory.mktemp("startup").resolve()
    wanted = {"binary": str(opencode_binary), "root": str(root), "home": str(root / "durable"), "starts": STARTS}
    done = subprocess.run(
        [*namespace, sys.executable, "-m", "tests.real.offline"],
        input=json.dumps(wanted | {"plan": PLAN}),
        capture_output=True,
        text=True,
        timeout=START_LIMIT_S * STARTS,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["model_errors"] == []
    return result


@pytest.mark.parametrize("case", [GLOBAL, PROJECT])
def test_a_start_without_a_network_takes_not_much_longer_than_one_without_a_plugin(
    found: dict[str, Any], case: str
) -> None:
    seconds: dict[str, list[float]] = found["seconds"]
    # What else the machine does makes a start slower, never quicker; what npm would cost, every one of them costs.
    assert min(seconds[case]) <= MOST * max(seconds["no plugin"]), seconds
    assert max(seconds[case]) < NPM_WAIT_S + min(seconds["no plugin"]), seconds


def test_every_start_with_the_plugin_was_recorded(found: dict[str, Any]) -> None:
    assert len(found["sessions"]) == len(set(found["sessions"])) == 2 * STARTS, found["said"]


def test_no_npm_runs(found: dict[str, Any]) -> None:
    assert found["npm_calls"] == []
    # OpenCode has npm in itself: it tried, and gave up at once, only where packages are used.
    assert {line.split("dir=")[1].split()[0].rsplit("/", 2)[-2] for line in found["npm_failures"]} == {"project"}
    assert len(found["npm_failures"]) == STARTS


def test_what_opencode_met_and_what_is_left(found: dict[str, Any]) -> None:
    bare, everywhere, uninstalled, used, project, left = found["trees"]
    for directory in ("config/opencode", "project/.opencode", "home/.opencode", "extra"):
        assert everywhere[f"{directory}/package-lock.json"][1] == LOCK_TEXT
        assert not [path for path in everywhere if path.startswith(f"{directory}/node_modules/")]
    assert project["project/.opencode/.npmrc"][1] == RC_TEXT.decode() + "save-exact=true"
    assert "project/.opencode/node_modules" not in project
    assert project["config/opencode/package-lock.json"][1] == LOCK_TEXT
    assert uninstalled == bare
    assert left == used
