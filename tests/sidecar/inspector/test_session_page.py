"""What axe finds on every page, and the page of a session: its tabs, its slider, its addresses and its forks."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from bridge.opencode.link.frames import HookItem, ShimIdentity
from sidecar.home import Home
from sidecar.link.client import ShimClient
from sidecar.link.launch import ensure_running
from streams.identity import system_identity
from tests.sidecar.cli.helpers import RECORDINGS, make_home, run, run_process
from tests.sidecar.inspector.conftest import ROOT, TITLE, WAIT_MS, Served, aside, looking
from tests.sidecar.life import end_sidecars

AXE = Path(__file__).parents[3] / "plugin-shim" / "node_modules" / "axe-core" / "axe.min.js"
SEEN = "(only) => axe.run({resultTypes: ['violations'], ...only}).then(found => found.violations)"
PAGES = {
    "/": ".row",
    "/?q=login": "#found .hit",
    f"/s/{ROOT}": ".talk > *",
    f"/s/{ROOT}?at=34": ".past",
    f"/s/{ROOT}/timeline": ".lanes",
    f"/s/{ROOT}/files": ".diff",
    f"/s/{ROOT}/events": ".events tr",
    "/work": ".page",
    "/costs": ".spent",
    "/nope": "h1",
    "/health": "#main dl",
    f"/compare/{ROOT}": ".sums",
    f"/compare/{ROOT}/ses_dff2906baffeAePlLpyxcsvWdu": ".lanes",
    f"/compare/{ROOT}/{ROOT}?at=20": ".lanes",
}
"""Each page, and what it has once it is drawn."""


def faults(page: Page) -> list[str]:
    """The serious and the critical violations on a page in both colour schemes, each with the elements that have it."""
    found: list[dict[str, Any]] = []
    page.evaluate(AXE.read_text())
    page.emulate_media(color_scheme="light")
    found += page.evaluate(SEEN, {})
    page.emulate_media(color_scheme="dark")  # changes colours, and nothing else
    found += page.evaluate(SEEN, {"runOnly": ["color-contrast"]})
    return [
        f"{each['id']}: {node['html'][:160]} {node['failureSummary'][:200]}"
        for each in found
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"][:4]
    ]


@pytest.mark.parametrize("path", PAGES)
def test_no_page_has_a_serious_fault(page: Page, served: Served, path: str) -> None:
    page.goto(served.base + path)
    page.wait_for_selector(PAGES[path])
    assert faults(page) == []


def test_an_open_detail_and_the_list_of_keys_have_no_serious_fault(page: Page, served: Served) -> None:
    page.goto(f"{served.base}/s/{ROOT}/events")
    page.locator(".events tr").nth(5).click()
    page.wait_for_selector(".detail h3")
    assert faults(page) == []
    page.get_by_text("Why?").click()
    page.wait_for_selector(".chain li.this")
    assert faults(page) == []
    page.keyboard.press("?")
    page.wait_for_selector("#keys[open]")
    assert faults(page) == []


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
    events = [each["event"] for each in run(home, "query", "--json").objects()]
    session, directory = events[0]["stream_id"], events[0]["payload"]["directory"]
    spoken = [each["payload"]["message"] for each in events if each["type"] in ("human.input", "execution.output")]
    second = next(each for each in events if each["payload"].get("message") == spoken[2])
    assert directory == str(tmp_path)
    client = OpenCode(home, directory, spoken, created(recorded, FORK))
    try:
        with opened(client), looking(browser, home) as (page, served):
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
        made, prompt = client.calls
        assert made == ("session.fork", {"messageID": spoken[2]})
        assert (prompt[0], prompt[1]["parts"][0]["text"]) == ("session.promptAsync", "Use a queue instead")
        assert f"fork of {session}" in run(home, "tree", FORK).out
        with looking(browser, home) as (page, served):
            page.goto(f"{served.base}/s/{session}?event={second['id']}")
            page.locator(".detail").get_by_text("Fork here").click()
            dialog = page.locator("dialog.fork")
            expect(dialog.locator(".bad")).to_contain_text("open OpenCode in that project")
            expect(dialog.get_by_text("Fork", exact=True)).to_be_disabled()
            expect(dialog.locator("textarea")).to_be_disabled()
            expect(dialog).not_to_contain_text("Nothing runs")
            assert faults(page) == []
    finally:
        aside(end_sidecars, Home(home))


def test_the_conversation_is_the_one_of_the_exports(page: Page, served: Served, filled: Path, browser: Browser) -> None:
    page.goto(f"{served.base}/s/{ROOT}")
    talk = page.locator(".talk")
    expect(talk).to_contain_text("check() compares the two strings with is")
    html = run_process(filled, "read", ROOT, "--format", "html").out
    file = browser.new_page()
    file.set_content(html)
    exported = file.locator("body .prompt, body .said, body .call").all_inner_texts()
    file.close()
    assert page.locator(".talk .prompt, .talk .said, .talk .call").all_inner_texts() == exported


def test_the_slider_shows_every_tab_as_it_was(page: Page, served: Served) -> None:
    page.goto(f"{served.base}/s/{ROOT}?at=14")
    expect(page.locator(".past")).to_have_text("as of event 14")
    expect(page.locator(".legend span")).to_have_text(["turn", "edit", "ask", "error"])
    expect(page.locator(".talk")).to_contain_text("still open")
    expect(page.locator(".talk")).not_to_contain_text("Thanks. Commit it.")
    page.keyboard.press("3")
    expect(page.locator(".body")).to_contain_text("No agent changed a file")
    page.keyboard.press("4")
    expect(page.locator(".events tr")).to_have_count(15)
    page.keyboard.press("]")
    expect(page.locator(".events tr")).to_have_count(16)
    page.keyboard.press("[")
    expect(page.locator(".events tr")).to_have_count(15)
    page.keyboard.press("}")
    expect(page.locator(".past")).not_to_have_text("as of event 14")
    page.keyboard.press("0")
    expect(page.locator(".past")).to_have_count(0)
    page.keyboard.press("3")
    expect(page.locator(".diff .add")).to_contain_text("== password")


def test_what_changed_from_an_event_on_is_chosen_where_it_is_shown(page: Page, served: Served) -> None:
    page.goto(f"{served.base}/s/{ROOT}/files?at=14")
    mark = page.locator(".slider [aria-pressed]")
    mark.click()
    expect(mark).to_have_text("from 14")
    page.keyboard.press("]")
    expect(page.locator(".body")).to_contain_text("between events 14 and 15")
    page.keyboard.press("0")
    expect(mark).to_have_text("from here")
    expect(page.locator(".body")).not_to_contain_text("between")
    page.keyboard.press("m")
    expect(page.locator(".body")).to_contain_text("between events 50 and 50")
    page.keyboard.press("4")
    expect(mark).to_be_hidden()
    page.keyboard.press("m")
    page.keyboard.press("3")
    expect(mark).to_have_text("from here")
    expect(page.locator(".body")).not_to_contain_text("between")


def test_an_open_event_has_an_address_and_the_way_back_leads_through_it(page: Page, served: Served) -> None:
    page.goto(f"{served.base}/s/{ROOT}/events?at=14")
    # The title came later, and names the session at every moment.
    expect(page).to_have_title(f"{TITLE} · Durable Stream")
    expect(page.locator("h1")).to_have_text(TITLE)
    expect(page.locator(".leaf[aria-current]")).to_contain_text(TITLE)
    detail = page.locator(".detail")
    page.locator(".events tr").nth(4).click()
    expect(detail).to_contain_text("offset 4 of")
    link = page.url
    page.locator(".events tr").nth(5).click()
    expect(detail).to_contain_text("offset 5 of")
    page.keyboard.press("3")
    expect(page.locator(".body")).to_contain_text("No agent changed a file")
    page.go_back()
    expect(page.locator(".events tr")).to_have_count(15)
    page.go_back()
    expect(detail).to_contain_text("offset 4 of")
    assert page.url == link
    page.go_back()
    expect(detail).to_be_hidden()
    page.go_forward()
    expect(detail).to_be_visible()
    expect(detail).to_contain_text("offset 4 of")
    page.keyboard.press("Escape")
    expect(detail).to_be_hidden()
    expect(page).to_have_url(f"{served.base}/s/{ROOT}/events?at=14")
    page.goto(link)
    expect(detail).to_contain_text("offset 4 of")
    expect(page.locator(".events tr")).to_have_count(15)


def test_each_step_of_the_conversation_leads_to_its_event(page: Page, served: Served) -> None:
    page.goto(f"{served.base}/s/{ROOT}")
    detail, call = page.locator(".detail"), page.locator(".talk .call").first
    name = call.get_attribute("id")
    call.locator("> p").first.click()
    expect(detail).to_be_visible()
    expect(page).to_have_url(f"{served.base}/s/{ROOT}/conversation?event={name}")
    expect(call).to_have_class("call at")
    assert faults(page) == []
    page.keyboard.press("Escape")
    expect(detail).to_be_hidden()
    page.keyboard.press("k")
    page.keyboard.press("j")
    expect(call).to_have_class("call at")
    page.keyboard.press("Enter")
    expect(detail).to_be_visible()
    expect(page).to_have_url(f"{served.base}/s/{ROOT}/conversation?event={name}")
    for kind, heading in (("prompt", "> header"), ("said", "> [role=button]")):
        step = page.locator(f".talk .turn-html > .{kind}").first
        step.locator(heading).focus()
        page.keyboard.press("Enter")
        expect(page).to_have_url(f"{served.base}/s/{ROOT}/conversation?event={step.get_attribute('id')}")
        expect(detail.locator("dl")).to_contain_text(step.get_attribute("id") or "?")
    said = page.locator(".talk .turn-html > .said").first
    said.locator("p").first.click()  # as one who copies a word
    expect(page).to_have_url(re.compile(f"event={page.locator('.talk .at').get_attribute('id')}"))


def test_an_event_has_the_number_that_the_log_gives_it(page: Page, served: Served, filled: Path) -> None:
    offsets = [int(row[2]) for row in run(filled, "log", ROOT).rows()[1:]]
    page.goto(f"{served.base}/s/{ROOT}/events")
    expect(page.locator(".events tr .num")).to_have_text([str(each) for each in offsets])
    expect(page.locator(".slider output")).to_contain_text(f"event {offsets[-1]}")
    page.locator(".events tr").nth(14).click()
    expect(page.locator(".detail dl")).to_contain_text("offset 14 of")
    page.get_by_text("Show the session at event 14").click()
    expect(page.locator(".past")).to_have_text("as of event 14")
    expect(page.locator(".slider output")).to_contain_text("event 14")
    expect(page.locator(".events tr").last.locator(".num")).to_have_text("14")
    page.goto(f"{served.base}/s/{ROOT}?at=0")
    expect(page.locator(".past")).to_have_text("as of event 0")
    at = run(filled, "state", ROOT, "--at", "14", "--json").objects()[0]
    assert (at["at"], at["event"]["id"]) == (14, run(filled, "log", ROOT).rows()[15][3])


def test_a_step_asks_once_for_what_a_tab_shows_and_for_the_head(page: Page, served: Served) -> None:
    with page.expect_response("**/api/work"):  # the last answer of the first news
        page.goto(f"{served.base}/s/{ROOT}?at=30")
    for number, tab in enumerate(("conversation", "timeline", "files", "events"), 1):
        with page.expect_response(f"**/{tab}?*"):
            page.keyboard.press(str(number))
        expect(page.locator(".tabs [aria-current]")).to_have_text(tab.capitalize())
        asked: list[str] = []
        page.on("request", lambda request, asked=asked: asked.append(request.url.partition("&")[0]))
        for key, at in (("[", 29), ("]", 30)):
            page.keyboard.press(key)
            expect(page.locator(".past")).to_have_text(f"as of event {at}")
        assert asked == [f"{served.base}/api/s/{ROOT}/{tab}?at={at}" for at in (29, 30)]


def test_the_timeline_shows_children_waits_and_what_a_bar_is(page: Page, served: Served) -> None:
    page.goto(f"{served.base}/s/{ROOT}/timeline")
    expect(page.locator(".lanes a .turn")).to_have_count(4)
    expect(page.locator(".lanes .name")).to_contain_text(["Fix the failing", "Look at login.py", "Look at the test"])
    page.locator(".lanes a .ask").hover()
    expect(page.locator(".told")).to_contain_text("waited for a person")
    page.locator(".lanes a .error").click()
    expect(page.locator(".detail")).to_contain_text("python3 test_login.py")
    # What both figures count is the same; "only" and "together" say what differs.
    for shown in ("turns 4 in 3 sessions", "28ms"):
        expect(page.locator(".head .facts")).to_contain_text(shown)
        expect(page.locator(".timeline .facts")).to_contain_text(shown)
    page.keyboard.press("Escape")
    expect(page.locator(".detail")).to_be_hidden()


def test_the_address_names_the_moment_once_the_reader_rests_and_only_while_it_is_shown(
    browser: Browser, served: Served
) -> None:
    own = browser.new_context()
    own.clock.install(time=0)
    page = own.new_page()
    page.goto(f"{served.base}/s/{ROOT}/events?at=30#{served.link.partition('#')[2]}")
    page.wait_for_selector(".events tr")
    page.evaluate(
        "() => { const real = history.replaceState.bind(history); window.written = 0;"
        " history.replaceState = (...given) => { written++; real(...given); }; }"
    )
    own.clock.pause_at(3_600_000)
    for at in range(29, 24, -1):
        page.keyboard.press("[")
        expect(page.locator(".past")).to_have_text(f"as of event {at}")
    own.clock.run_for(1000)
    expect(page).to_have_url(f"{served.base}/s/{ROOT}/events?at=25")
    assert page.evaluate("written") == 1
    page.keyboard.press("[")
    page.get_by_role("link", name="Work").click()
    own.clock.run_for(1000)
    expect(page).to_have_url(f"{served.base}/work")
    own.close()


def test_a_timeline_has_its_head_before_it_is_drawn_and_is_asked_for_once(
    page: Page, served: Served, filled: Path
) -> None:
    alone = next(each for each in run(filled, "streams", "--json").objects() if each["sessions"] == 1)
    held: list[Route] = []
    page.route("**/timeline?*", lambda route: held.append(route))
    page.goto(f"{served.base}/s/{alone['stream_id']}/timeline")
    expect(page.locator(".session .tabs a")).to_have_count(4)
    expect(page.locator(".timeline .empty")).to_have_text("Loading …")
    expect(page.locator(".timeline select")).to_be_hidden()
    held[0].continue_()
    expect(page.locator(".lanes")).to_be_visible()
    assert len(held) == 1


def test_the_panel_of_an_event_ends_below_the_bar(page: Page, served: Served) -> None:
    page.goto(f"{served.base}/s/{ROOT}/events")
    page.locator(".events tr").nth(-3).click()
    expect(page.locator(".detail h3")).to_be_visible()
    page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    top = page.locator(".detail").evaluate("panel => panel.getBoundingClientRect().top")
    assert top >= page.locator(".bar").evaluate("bar => bar.getBoundingClientRect().bottom")


def test_the_timeline_shows_what_runs_after_a_moment_at_which_nothing_had(page: Page, served: Served) -> None:
    page.goto(f"{served.base}/s/{ROOT}/timeline?at=0")
    expect(page.locator(".timeline .empty")).to_be_visible()
    page.keyboard.press("0")
    expect(page.locator(".lanes a .turn")).to_have_count(4)
    expect(page.locator(".timeline .empty")).to_be_hidden()


def test_the_timeline_is_used_with_the_keyboard(page: Page, served: Served) -> None:
    page.goto(f"{served.base}/s/{ROOT}/timeline")
    expect(page.locator('.lanes a[tabindex="0"]')).to_have_count(1)
    page.locator('.lanes a[tabindex="0"]').focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".told")).to_contain_text("turn 2")
    page.keyboard.press("z")
    expect(page.locator(".timeline select")).to_contain_text("turn 2")
    expect(page.locator(".lanes a .turn")).to_have_count(1)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator(".detail")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    expect(page.locator(".lanes a .turn")).to_have_count(4)
