"""The button that forks a session, with a real sidecar and an OpenCode of a few lines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

from playwright.sync_api import Browser, expect

from bridge.opencode.link.frames import HookItem, ShimIdentity
from sidecar.home import Home
from sidecar.link.client import ShimClient
from sidecar.link.launch import ensure_running
from streams.identity import system_identity
from tests.sidecar.cli.helpers import RECORDINGS, make_home, run_process
from tests.sidecar.inspector.conftest import WAIT_MS, aside, inspecting
from tests.sidecar.inspector.test_axe import faults
from tests.sidecar.life import end_sidecars

FORK = "ses_0000000000001fork00000000"
PROJECT = "/home/dev/project"
NOBODY = 2**22 + 1
"""No process has this id."""


class OpenCode:
    """An OpenCode 1 in which a directory is open, with one session."""

    def __init__(self, home: Path, directory: str, messages: list[str], fork: HookItem) -> None:
        self._home, self._directory, self._messages, self._fork = Home(home), directory, messages, fork
        self._life = AsyncExitStack()
        self.calls: list[tuple[str, Any]] = []

    async def open(self) -> None:
        await ensure_running(self._home)
        about = ("ab" * 16, "cd" * 8, NOBODY, "p", self._directory, self._directory, "1.18.33", 0)
        identity = ShimIdentity("0.1.0", *about)
        made = await ShimClient.connect(self._home, identity=identity, nonce=system_identity().nonce)
        made.called = self._call  # type: ignore[method-assign]
        self._client = await self._life.enter_async_context(made)

    async def close(self) -> None:
        await self._life.aclose()

    async def _call(self, method: str, args: dict[str, Any]) -> Any:
        if method == "session.messageIds":
            return self._messages
        if method in ("session.fork", "session.promptAsync"):
            self.calls.append((method, args["body"]))
        if method == "session.fork":
            await self._client.send([self._fork])
            return {"id": FORK}
        return [] if method == "session.messages" else {}


def created(recording: Path, session: str) -> HookItem:
    """What OpenCode announces, as it was recorded, with another id."""
    lines = map(json.loads, recording.read_text().splitlines())
    found = next(each for each in lines if "session.created" in json.dumps(each["input"]))
    old = found["input"]["event"]["properties"]["info"]["id"]
    return HookItem("event", found["t"], json.loads(json.dumps(found["input"]).replace(old, session)))


@contextmanager
def opened(client: OpenCode) -> Iterator[None]:
    """The client is open, in a thread of its own: Playwright has an event loop in that of the test."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever)
    thread.start()

    def do(what: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(what, loop).result(WAIT_MS / 1000)

    try:
        do(client.open())
        yield
    finally:
        do(client.close())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_an_event_is_forked_only_after_a_person_agrees(browser: Browser, tmp_path: Path) -> None:
    recorded = tmp_path / "here.jsonl"
    recorded.write_text((RECORDINGS / "chat_two_turns.jsonl").read_text().replace(PROJECT, str(tmp_path)))
    home = aside(make_home, tmp_path / "home", str(tmp_path / "here"))
    events = [each["event"] for each in run_process(home, "query", "--json").objects()]
    session, directory = events[0]["stream_id"], events[0]["payload"]["directory"]
    spoken = [each["payload"]["message"] for each in events if each["type"] in ("human.input", "execution.output")]
    second = next(each for each in events if each["payload"].get("message") == spoken[2])
    assert directory == str(tmp_path)
    client = OpenCode(home, directory, spoken, created(recorded, FORK))
    try:
        with opened(client), inspecting(home) as served:
            page = browser.new_page()
            page.set_default_timeout(WAIT_MS)
            page.goto(served.link)
            page.goto(f"{served.base}/s/{session}?event={second['id']}")
            page.locator(".detail").get_by_text("Fork here").click()
            dialog = page.locator("dialog.fork")
            expect(dialog).to_contain_text("first 2 messages")
            expect(dialog).to_contain_text("Nothing runs in the fork.")
            assert faults(page) == []
            dialog.get_by_text("Cancel").click()
            expect(dialog).to_have_count(0)
            assert client.calls == []
            page.locator(".detail").get_by_text("Fork here").click()
            dialog.locator("textarea").fill("Use a queue instead")
            expect(dialog).to_contain_text("Your prompt runs in the fork")
            dialog.get_by_text("Fork", exact=True).click()
            dialog.get_by_text("open it").click()
            expect(page.locator(".talk, .empty")).to_be_visible()
            assert page.url == f"{served.base}/s/{FORK}"
            expect(page.locator(".side h2")).to_contain_text(["Forked from"])
            page.locator(f'.side .leaf[href="/s/{session}"]').click()
            expect(page.locator(".talk")).to_contain_text("SAY:pong2")
            page.close()
        made, prompt = client.calls
        assert made == ("session.fork", {"messageID": spoken[2]})
        assert (prompt[0], prompt[1]["parts"][0]["text"]) == ("session.promptAsync", "Use a queue instead")
        assert f"fork of {session}" in run_process(home, "tree", FORK).out
        with inspecting(home) as served:
            page = browser.new_page()
            page.set_default_timeout(WAIT_MS)
            page.goto(served.link)
            page.goto(f"{served.base}/s/{session}?event={second['id']}")
            page.locator(".detail").get_by_text("Fork here").click()
            dialog = page.locator("dialog.fork")
            expect(dialog.locator(".bad")).to_contain_text("open OpenCode in that project")
            expect(dialog.get_by_text("Fork", exact=True)).to_be_disabled()
            expect(dialog.locator("textarea")).to_be_disabled()
            expect(dialog).not_to_contain_text("Nothing runs")
            assert faults(page) == []
            page.close()
    finally:
        aside(end_sidecars, Home(home))
