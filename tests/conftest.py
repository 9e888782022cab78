"""Every test process has its own user configuration with the plugin; the real one is left alone."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from sidecar.home import Home
from sidecar.install.plugin import Target, install, shim_path

_PREFIX = "durable-stream-tests-"
_place = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    """Set the configuration before any import that could look for it."""
    place = config.stash[_place] = Path(tempfile.mkdtemp(prefix=_PREFIX))
    for name in [name for name in os.environ if name.startswith(("DURABLE_STREAM", "OPENCODE"))]:
        del os.environ[name]
    os.environ["XDG_CONFIG_HOME"] = str(place)
    os.environ["XDG_STATE_HOME"] = str(place / "state")
    # A busy machine is no fault of what is tested.
    settings.register_profile("any load", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("any load")
    # A run in the background of a script inherits an ignored Ctrl-C, and so would the processes that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # The processes that tests start would compile the product again each time, which is half of what a short one does.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    world = {"HOME": str(place), "XDG_CONFIG_HOME": str(place)}
    command = [sys.executable, "-m", "sidecar.cli"]
    install(Target.everywhere(world), shim=shim_path(), command=command, home=place / "home", cwd=place, environ=world)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage among the tests: all of them stay, and to look at them each time is a third of the work."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


LONG = ("tests/real/",)
WAITING = ("tests/torture/", "tests/sidecar/mirror/", "tests/sidecar/test_")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the long files, so that no worker is left alone with one of them at the end.

    Beside them come those that mostly wait for processes: the processors are then neither crowded at first nor idle
    later.
    """
    files = list(dict.fromkeys(file_of(item) for item in items))
    places = dict.fromkeys(files, (1, 0.0))
    for beginnings in (LONG, WAITING):
        group = [name for name in files if name.startswith(beginnings)]
        places |= {name: (0, number / len(group)) for number, name in enumerate(group)}
    items.sort(key=lambda item: places[file_of(item)])


def file_of(item: pytest.Item | pytest.TestReport) -> str:
    return item.nodeid.partition("::")[0]


MOST_S = 60.0
"""How long a file may take in a whole run. The run has eight minutes, and two processors run few files at once."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the files that take longer than they may."""
    took = defaultdict[str, float](float)
    for report in [each for kind in terminalreporter.stats.values() for each in kind]:
        if isinstance(report, pytest.TestReport):
            took[file_of(report)] += report.duration
    for name, seconds in sorted(took.items(), key=lambda each: -each[1]):
        if seconds > MOST_S:
            terminalreporter.write_line(f"{name} took {seconds:.0f} s, and may take {MOST_S:.0f}: share what it starts")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove everything."""
    shutil.rmtree(config.stash[_place])


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home that exists and is still empty."""
    home = Home(tmp_path / "home")
    home.create()
    return home
