"""The plugin makes no start of OpenCode wait for npm: real starts in a namespace with loopback only.

With any plugin, OpenCode waits for npm in each of its config directories. Without a network
that takes over a minute. The tests count npm's requests, because times depend on the machine's load: a start
with an installed plugin sends none, and in directories with packages it sends each request once.
``make bench`` measures the seconds (``benchmarks/opencode.py``).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sidecar.install.npm import LOCK_TEXT, RC_TEXT
from tests.real.offline import START_LIMIT_S, namespace_command
from tests.real.registry import MISSING, UNAVAILABLE

pytestmark = pytest.mark.real_opencode

STARTS = 1
NPM_WAIT_S = 60.0
"""A start that waits for npm takes longer than this, on the quickest machine too."""

SEEN = ["config/opencode", "project/.opencode", "home", "extra"]
PROJECT = "plugin in the project alone, among other plugins"
GLOBAL_ONLINE, PROJECT_ONLINE = "plugin for every project, with a registry", f"{PROJECT}, with a registry"
BARE_ONLINE = "a plugin that was not installed, with a registry"
PLAN: list[dict[str, Any]] = [
    *({"make": name} for name in ("extra", "home/.opencode", "project/.opencode")),
    {"case": "no plugin"},
    # Such a start ends while npm still tries, and leaves OpenCode's own locks: a next npm would wait for them.
    {"remove": "state/opencode/locks"},
    {"tree": SEEN},
    # Every directory that OpenCode looks into is there and bare. This start can reach a registry: what it asked there
    # it would wait for without a network.
    {"do": ["install"]},
    {"registry": UNAVAILABLE},
    {"case": GLOBAL_ONLINE},
    {"registry": None},
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
    {"registry": UNAVAILABLE},
    {"case": PROJECT_ONLINE},
    {"tree": SEEN},
    {"sessions": 3 * STARTS},
    {"do": ["uninstall", "--project", "."]},
    {"tree": SEEN},
    # What a start asks without any of it: last, as npm leaves its files.
    {"registry": MISSING},
    {"case": BARE_ONLINE},
]


@pytest.fixture(scope="module")
def found(opencode_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The plan's results. If the system allows no namespace, the tests fail; a skip would hide that."""
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
        timeout=START_LIMIT_S * STARTS * sum("case" in step for step in PLAN),
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["model_errors"] == []
    return result


def test_an_installed_plugin_makes_no_start_ask_a_registry(found: dict[str, Any]) -> None:
    assert found["registry"][GLOBAL_ONLINE] == [[]] * STARTS
    # Without `install` npm asks, so the count would show it.
    assert all("/@opencode-ai%2fplugin" in asked for asked in found["registry"][BARE_ONLINE])


def test_where_others_have_packages_a_start_asks_for_each_thing_once(found: dict[str, Any]) -> None:
    """The registry is unavailable, so npm would retry after ten seconds and after a minute."""
    for asked in found["registry"][PROJECT_ONLINE]:
        assert asked and len(asked) == len(set(asked))


def test_no_start_without_a_network_waits_as_for_npm(found: dict[str, Any]) -> None:
    seconds: dict[str, list[float]] = found["seconds"]
    assert max(seconds[PROJECT]) < NPM_WAIT_S + min(seconds["no plugin"]), seconds


def test_every_start_with_the_plugin_was_recorded(found: dict[str, Any]) -> None:
    assert len(found["sessions"]) == len(set(found["sessions"])) == 3 * STARTS, found["said"]


def test_no_npm_runs(found: dict[str, Any]) -> None:
    assert found["npm_calls"] == []
    # OpenCode has npm in itself: it tried, and gave up at once, only where packages are used.
    tried: dict[str, list[str]] = found["npm_failures"]
    assert tried["no plugin"] + tried[GLOBAL_ONLINE] == []
    for case in (PROJECT, PROJECT_ONLINE):
        assert [line.split("dir=")[1].split()[0].rsplit("/", 2)[-2] for line in tried[case]] == ["project"] * STARTS


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
