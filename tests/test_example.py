"""The example agents, as docs/agents.md shows them: copied, configured, commanded by hand and over plain NATS."""

from __future__ import annotations

import asyncio
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest

from sidecar.home import Home
from sidecar.link.client import ControlClient
from sidecar.link.launch import ensure_running
from streams.identity import system_identity
from tests.sidecar.cli.helpers import LIMIT_SECONDS, ROOT, run, run_process

PAGE = (ROOT / "docs" / "agents.md").read_text()


def python_of_the_page(name: str) -> str:
    """The code that defines a function."""
    (code,) = [each for each in re.findall(r"```python\n(.*?)```", PAGE, re.S) if f"async def {name}(" in each]
    return str(code)


@pytest.fixture
def example_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("HOME", str(tmp_path))
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "agents").mkdir(mode=0o700)
    shutil.copy(ROOT / "examples" / "watch.py", home / "agents" / "watch.py")
    config = re.findall(r"```toml\n(.*?)```", PAGE, re.S)[0]
    # The page speaks of a server of the user's; here it is the embedded one.
    (home / "config.toml").write_text(config + '\n[nats]\nmode = "embedded"\n')
    yield home
    assert run(home, "stop").code == 0


async def send_over_nats(home: Path) -> None:
    """Run the code of the page."""
    code = python_of_the_page("send")
    client = await ControlClient.connect(Home(home), version="0", nonce=system_identity().nonce)
    async with client:
        address = await client.request("nats")
    names: dict[str, Any] = {"nats": nats}
    exec(code, names)
    await names["send"](f"nats://127.0.0.1:{address['port']}", token=address["token"])


def until_ready(home: Path) -> None:
    """Wait until the server keeps messages for the agents; it starts in the background."""
    end = time.monotonic() + LIMIT_SECONDS
    while not (rows := run(home, "status", "--json").objects()[0]["nats"]["commands"]) or not all(
        row["ready"] for row in rows
    ):
        assert time.monotonic() < end, rows


def lines(tmp_path: Path, count: int) -> list[str]:
    """The lines that the effect wrote, without their keys."""
    path = tmp_path / "report.txt"
    end = time.monotonic() + LIMIT_SECONDS
    while not path.exists() or len(path.read_text().splitlines()) < count:
        assert time.monotonic() < end, run_process(tmp_path / "home", "agents").out
        time.sleep(0.02)
    return [line.partition("  #")[0] for line in path.read_text().splitlines()]


def test_the_page_is_true(example_home: Path, tmp_path: Path) -> None:
    asyncio.run(ensure_running(Home(example_home)))
    listed = [row["name"] for row in run(example_home, "agents", "--json").objects()[0]["agents"]]
    assert listed == re.findall(r"^([a-z]+) +READY", PAGE, re.M)
    (shown,) = re.findall(r"\$ durable-stream send (\w+) (\w+) '(.*?)'\n(.*?)```", PAGE, re.S)
    assert run(example_home, "send", *shown[:3]).out == shown[3]
    assert lines(tmp_path, 1) == ["hello"]
    until_ready(example_home)
    asyncio.run(send_over_nats(example_home))
    assert lines(tmp_path, 2) == ["hello", "sent over NATS"]
    run(example_home, "play", str(ROOT / "sidecar" / "record" / "recordings" / "demo.jsonl"), "--speed", "max")
    end = time.monotonic() + LIMIT_SECONDS
    while not run(example_home, "query", "--type", "watcher.failed", "--json").objects():
        assert time.monotonic() < end
    assert run(example_home, "replay", "agent/watcher").code == 0
