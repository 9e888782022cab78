"""Where a person decides on the page, what will happen stands on the screen first, and what happened afterwards."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, Route, expect

from sidecar.background.copies.copies import Copies
from sidecar.read.wording import visible
from streams.event import StreamEvent
from streams.identity import seeded_identity
from tests.sidecar.inspector.conftest import Served, aside, inspecting, looking, record

TURNED = "Fix the \u202etxet\u202c, \u2066isolated\u2069 and e\u200bmpty"
SHOWN = "Fix the <U+202E>txet<U+202C>, <U+2066>isolated<U+2069> and e<U+200B>mpty"
JOINED = "می\u200cخواهم 👩\u200d💻"
ASKED = "delete <every> <file> of <script>alert(1)</script>\nnow"


async def changed(place: Path, home: Path) -> dict[str, Any]:
    """A project with a result; what the log says of it."""
    place.mkdir()
    (place / "drop.sql").write_text("-- keep out\nselect 1;\n")
    copies = Copies(home / "copies")
    root = Path((await copies.make("int_1", str(place))).root)
    (root / "drop.sql").write_text("select 1;\n")
    (root / "sly.py").write_text("if role == 'user\u202e':\n    pass\n")
    return {"copy": {"root": str(root), "name": "int_1"}, "changes": await copies.collect("int_1")}


def happened(place: Path, home: Path) -> list[StreamEvent]:
    """Work that changed files, work that runs, and a message."""
    identity, made = seeded_identity(5), []
    # the browser has the loop of this thread
    saved = ThreadPoolExecutor().submit(lambda: asyncio.run(changed(place, home))).result()

    def own(agent: str, type_: str, /, **payload: Any) -> None:
        about = {"stream_id": f"agent/{agent}", "actor": agent, "source": {"agent": agent, "adapter": "engine"}}
        made.append(identity.stamp({**about, "type": type_, "payload": payload, "metadata": {"role": "output"}}))

    for intent, title in (("int_1", TURNED), ("int_2", JOINED)):
        about = {"prompt": "Do", "title": title, "parent": None, "root": "r", "directory": str(place)}
        own("intents", "intent.created", intent=intent, ts=1, **about)
        own("intents", "intent.starting", intent=intent, ts=2, session=f"ses_{intent}")
        own("intents", "intent.isolated", intent=intent, ts=2, copy=saved["copy"])
        own("intents", "intent.started", intent=intent, ts=2, session=f"ses_{intent}")
    own("intents", "intent.completed", intent="int_1", ts=3, result="Done.", changes=saved["changes"])
    own("messages", "message.queued", message="alr_1", kind="alert", text=f"bash: {ASKED}", to="ses_int_1")
    return made


@contextmanager
def working(browser: Browser, tmp_path: Path) -> Iterator[tuple[Page, Served, list[tuple[str, Any]]]]:
    """The page about work, and what it asks of the sidecar, which answers that it is done."""
    home, sent = tmp_path / "home", list[tuple[str, Any]]()
    home.mkdir(mode=0o700)
    aside(record, home, happened(tmp_path / "shop", home))

    def answer(route: Route) -> None:
        sent.append((route.request.url.rpartition("/")[2], json.loads(route.request.post_data or "")))
        files = [{"file": "drop.sql"}, {"file": "sly.py"}]
        done = {"count": 2, "directory": "/shop", "changes": {"count": 2, "files": files}}
        route.fulfill(json=done)

    with looking(browser, home) as (page, served):
        page.route("**/api/do/*", answer)
        page.goto(f"{served.base}/work")
        yield page, served, sent


def test_what_is_applied_stands_on_the_screen(browser: Browser, tmp_path: Path) -> None:
    with working(browser, tmp_path) as (page, _, sent):
        apply = page.get_by_role("button", name="Apply 2 changed files …")
        apply.click()
        window = page.locator("dialog.decide")
        expect(window.locator("summary")).to_have_text(["drop.sql +0 −1", "sly.py +2 −0"])
        expect(window.locator(".del")).to_have_text("--- keep out")
        expect(window.locator(".add").first).to_have_text("+if role == 'user<U+202E>':")
        window.get_by_role("button", name="Do nothing").click()
        expect(window).to_have_count(0)
        assert sent == []
        apply.click()
        window.get_by_role("button", name="Apply 2 changed files").click()
        expect(page.locator("#main .note.done")).to_have_text("Applied: 2 files in /shop: drop.sql, sly.py")
        assert sent == [("apply", {"intent": "int_1"})]


def test_what_was_applied_says_when_and_is_taken_back(browser: Browser, tmp_path: Path) -> None:
    with working(browser, tmp_path) as (page, _, sent):
        about = {"stream_id": "agent/intents", "actor": "intents", "source": {"agent": "intents", "adapter": "engine"}}
        done = {**about, "type": "intent.applied", "payload": {"intent": "int_1", "ts": 43_440_000}}
        aside(record, tmp_path / "home", [seeded_identity(6).stamp({**done, "metadata": {"role": "output"}})])
        expect(page.locator("article .buttons .good")).to_have_text("Applied 1970-01-01 12:04")
        expect(page.get_by_role("button", name="Apply")).to_have_count(0)
        page.get_by_role("button", name="Undo …").click()
        expect(page.locator("dialog.decide")).to_contain_text("drop.sql, sly.py in")
        assert sent == []
        page.get_by_role("button", name="Take back 2 changed files").click()
        expect(page.locator("#main .note.done")).to_have_text("Took back: 2 files in /shop")
        assert sent == [("apply", {"intent": "int_1", "undo": True})]


def test_changes_that_are_gone_cannot_be_applied(browser: Browser, tmp_path: Path) -> None:
    with working(browser, tmp_path) as (page, _, sent):
        (tmp_path / "home/copies/results/int_1").rename(tmp_path / "moved")
        page.get_by_role("button", name="Apply 2 changed files …").click()
        expect(page.locator("#main .note")).to_contain_text("int_1")
        expect(page.locator("dialog.decide")).to_have_count(0)
        assert sent == []


def test_a_cancellation_names_the_work_and_says_what_became_of_it(browser: Browser, tmp_path: Path) -> None:
    with working(browser, tmp_path) as (page, _, sent):
        page.get_by_role("button", name="Cancel …").click()
        expect(page.locator("dialog.decide")).to_contain_text(JOINED)
        page.get_by_role("button", name="Cancel the work").click()
        expect(page.locator("#main .note.done")).to_contain_text("is being cancelled")
        assert sent == [("cancel", {"intent": "int_2"})]


def test_a_page_without_a_terminal_says_beforehand_that_it_decides_nothing(browser: Browser, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    aside(record, home, happened(tmp_path / "shop", home))
    alone = {"start_new_session": True, "stdin": subprocess.DEVNULL}
    with inspecting(home, place=lambda: nullcontext(alone)) as served:
        page = browser.new_page()
        page.goto(served.link)
        page.goto(f"{served.base}/work")
        expect(page.locator("#refused code")).to_have_text("durable-stream inspect")
        for name in ("Cancel …", "Apply 2 changed files …"):
            expect(page.get_by_role("button", name=name)).to_be_disabled()
        page.close()
    (tmp_path / "other").mkdir()
    with working(browser, tmp_path / "other") as (page, _, _):
        expect(page.get_by_role("button", name="Cancel …")).to_be_enabled()
        expect(page.locator("#refused")).to_have_count(0)


def test_texts_are_shown_as_they_are_and_nothing_in_them_is_hidden(browser: Browser, tmp_path: Path) -> None:
    with working(browser, tmp_path) as (page, _, _):
        expect(page.locator("article .title")).to_have_text([JOINED, SHOWN])
        expect(page.locator(".hit .snippet")).to_have_text(f"bash: {ASKED}")
        told = page.evaluate(
            "async (all) => { const lib = await import('/page/lib.js'); return all.map(lib.visible); }",
            texts := [
                TURNED,
                "a\x1b[31m\x07b\x9b",
                "a\u061c\u200e\u200fb",
                "\u2028\ufeff\u3164",
                "\U000e0041",
                "tab\tline\n",
            ],
        )
        assert told == [visible(text) for text in texts]
        shown = "async (text) => (await import('/page/lib.js')).visible(text)"
        assert page.evaluate(shown, "r\u200dm") == "r<U+200D>m" and page.evaluate(shown, JOINED) == JOINED
