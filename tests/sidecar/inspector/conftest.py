"""A served page in a real Chromium."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

from sidecar.read.story.writing import StoryTables
from streams.event import StreamEvent
from streams.identity import seeded_identity
from streams.log.log import Log
from tests.at_terminal import at_terminal
from tests.sidecar.cli.helpers import append, command, environment, make_home
from tests.sidecar.cli.test_costs import DAY, happened
from tests.streams.derivers import caught_up
from tools.install_chromium import find

ROOT = "ses_dff0a5b68ffegK4yUQGH09hey7"
TITLE = "Fix the failing login test"
WAIT_MS = 30_000
T = TypeVar("T")
QUIET = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")


@dataclass
class Served:
    """A running ``inspect``: its link, and everything that it printed."""

    link: str
    process: subprocess.Popen[str]
    told: list[str] = field(default_factory=list)

    @property
    def base(self) -> str:
        """The address without a path."""
        return self.link[: self.link.index("/", 8)]


def aside(function: Callable[..., T], *arguments: Any) -> T:
    """Call something that runs an event loop; Playwright has one in the thread of the test."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *arguments).result()


@contextmanager
def inspecting(home: Path, *arguments: str, place: Callable[[], Any] = at_terminal, **environ: str) -> Iterator[Served]:
    """Run ``inspect`` as a user does, in a terminal, and end it."""
    with place() as options:
        process = subprocess.Popen(
            command(home, "inspect", "--no-browser", *arguments),
            stderr=subprocess.PIPE,
            text=True,
            env=environment(TZ="UTC", **environ),
            **options,
        )
        assert process.stderr is not None
        try:
            line = process.stderr.readline()
            found = re.search(r"http://\S+", line)
            assert found, line + process.stderr.read()
            yield Served(found[0], process)
        finally:
            process.send_signal(signal.SIGINT)  # Ctrl-C
            process.communicate(timeout=WAIT_MS / 1000)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A Chromium. Until it ends, what runs an event loop needs ``aside``."""
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=find(), args=list(QUIET))
        yield opened
        opened.close()


@contextmanager
def looking(browser: Browser, home: Path) -> Iterator[tuple[Page, Served]]:
    """A page over a home of its own, at the list of sessions."""
    with inspecting(home) as served:
        page = browser.new_page()
        page.set_default_timeout(WAIT_MS)
        page.goto(served.link)
        yield page, served
        page.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One Chromium for the tests of a file."""
    with chromium() as opened:
        yield opened


DEMO = "../../sidecar/record/recordings/demo"
RECORDINGS = ("chat", "permission_once", "task_parallel", "question_replied", "write_edit", "http_401")


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with recordings of the real OpenCode."""
    return aside(make_home, tmp_path_factory.mktemp("inspected") / "home", DEMO, *RECORDINGS)


NOW = 1_800_000_000_000
HOUR = DAY // 24
COUNT = 30


def at(hour: int) -> int:
    """So many hours ago."""
    return NOW - hour * HOUR


@pytest.fixture(scope="session")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Session ``s`` began ``2s + 2`` hours ago, ran for an hour, and was imported in another order. Every third one is
    of the shop, every fifth failed, and every one was asked to do something by hand. The first one has a child."""
    home = tmp_path_factory.mktemp("imported") / "home"
    home.mkdir(mode=0o700)
    batches = []
    for number in sorted(range(COUNT), key=lambda each: each * 7 % COUNT):
        name, agent = f"ses_{number:02}", "plan" if number % 2 else "build"
        about = {"stream": name, "message": "m"}
        directory = f"/work/the-{'shop' if number % 3 == 0 else 'site'}-of-a-very-long-name/in-a-directory"
        created = {"directory": directory, "title": "By hand" if number >= COUNT // 2 else ""}
        said = {"parts": [{"type": "text", "text": "Do this by hand"}], "agent": agent}
        last = at(2 * number + 1)
        batches.append(
            [
                happened("lifecycle.session.created", name, at(2 * number + 2), **created),
                happened("human.input", name, last - 2, actor="user", **about, **said),
                happened("turn.started", name, last - 1, **about, actor=agent),
                happened("turn.ended", name, last, **about, outcome="completed" if number % 5 else "failed", error="x"),
            ]
        )
    created = {"directory": "/work/the-shop", "parent": "ses_00"}
    batches.append(
        [
            happened("lifecycle.session.created", "ses_child", at(2), "ses_00", **created),
            happened("turn.started", "ses_child", at(2), stream="ses_00", message="c", actor="explore"),
        ]
    )
    aside(asyncio.run, append(home / "store", batches))
    return home


@pytest.fixture(scope="module")
def served(filled: Path) -> Iterator[Served]:
    """The page over ``filled``."""
    with inspecting(filled) as running:
        yield running


@pytest.fixture(scope="module")
def context(browser: Browser, served: Served) -> Iterator[object]:
    """A browser whose tabs have the link's secret, as after the link or another tab gave it to them."""
    made = browser.new_context(viewport={"width": 1440, "height": 900})
    made.set_default_timeout(WAIT_MS)
    made.add_init_script(f"sessionStorage.setItem('secret', '{served.link.partition('#')[2]}')")
    yield made
    made.close()


@pytest.fixture
def page(context: object) -> Iterator[Page]:
    """A page that reports no error of its own and asks nobody but us."""
    opened: Page = context.new_page()  # type: ignore[attr-defined]
    faults: list[str] = []
    opened.on("pageerror", lambda error: faults.append(str(error)))

    def heard(message: ConsoleMessage) -> None:
        if message.type == "error" and "Failed to load resource" not in message.text:
            faults.append(message.text)

    opened.on("console", heard)
    opened.on("request", lambda request: faults.append(request.url) if "127.0.0.1" not in request.url else None)
    yield opened
    opened.close()
    assert faults == []


def record(home: Path, events: list[StreamEvent]) -> None:
    """Add events to a log, as a sidecar does."""

    async def add() -> None:
        log = await Log.open(home / "store", seeded_identity(1), derived=StoryTables())
        for first in range(0, len(events), 500):
            await log.append(events[first : first + 500], on_known="keep_first")
        await caught_up(log)
        await log.close()

    asyncio.run(add())
