"""How the page looks and what it weighs: colours, widths, its size, and hostile text in every field."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from sidecar.inspector.server import PAGE
from sidecar.read.past.drawing import STYLE
from streams.identity import seeded_identity
from tests.sidecar.cli.helpers import make_home, run
from tests.sidecar.inspector.conftest import DEMO, ROOT, Served, aside, looking, record

HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>\u202e‮]]>'\"&amp;{{7*7}}"


def test_colours_are_those_of_the_system_or_those_that_were_chosen(page: Page, served: Served) -> None:
    dark, light = "rgb(16, 18, 22)", "rgb(255, 255, 255)"
    page.emulate_media(color_scheme="dark")
    page.goto(served.base)
    body, button = page.locator("body"), page.locator("#theme")
    expect(body).to_have_css("background-color", dark)
    button.click()
    expect(body).to_have_css("background-color", light)
    page.reload()
    expect(button).to_have_accessible_name("Colours: light")
    expect(body).to_have_css("background-color", light)
    page.emulate_media(color_scheme="light")
    button.click()
    expect(body).to_have_css("background-color", dark)
    button.click()
    expect(body).to_have_css("background-color", light)
    expect(button).to_have_accessible_name("Colours: as the system has them")


@pytest.mark.parametrize("width", [1024, 390])
def test_nothing_is_wider_than_the_screen(page: Page, served: Served, filled: Path, width: int) -> None:
    streams = [each["stream_id"] for each in run(filled, "streams", "--json").objects()]
    beside = f"/compare/{ROOT}/{next(each for each in streams if each != ROOT)}"
    page.set_viewport_size({"width": width, "height": 800})
    for path in ("/", f"/s/{ROOT}", f"/s/{ROOT}/timeline", f"/s/{ROOT}/files", "/costs", "/health", beside):
        page.goto(served.base + path)
        page.wait_for_selector(".page, .session")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
    page.goto(f"{served.base}/s/{ROOT}/events")
    page.locator(".events tr").last.click()
    assert page.locator(".events .what").last.evaluate("cell => cell.clientWidth") >= 120


def test_every_module_is_asked_for_at_once() -> None:
    index = (PAGE / "index.html").read_text()
    assert set(re.findall(r'(?:src|href)="/page/(\w+\.js)"', index)) == {path.name for path in PAGE.glob("*.js")}


def test_the_whole_page_is_small() -> None:
    files = [path for path in PAGE.iterdir() if path.is_file()]
    assert (
        sum(len(gzip.compress(path.read_bytes())) for path in files) + len(gzip.compress(STYLE.encode())) <= 60 * 1024
    )


def test_hostile_text_in_every_field_is_shown_and_does_nothing(browser: Browser, tmp_path: Path) -> None:
    home = aside(make_home, tmp_path / "home", DEMO)
    identity = seeded_identity(7)
    evil = {"session": "ses_evil", "title": HOSTILE, "directory": HOSTILE, "agent": HOSTILE, "text": HOSTILE}
    evil |= {"message": "m", "turn": "m", "tool": HOSTILE, "input": {"command": HOSTILE}, "output": HOSTILE}
    evil |= {"error": HOSTILE, "parts": [{"type": "text", "text": HOSTILE}], "kind": "permission", "state": "asked"}
    evil |= {"request": "r", "metadata": {"command": HOSTILE, "diff": HOSTILE}, "patterns": [HOSTILE], "call": "c"}
    evil |= {"model": {"provider": HOSTILE, "model": HOSTILE}, "outcome": HOSTILE, "always": [HOSTILE]}
    types = "lifecycle.session.created human.input turn.started execution.output execution.step workflow.checkpoint"
    about = {"stream_id": "ses_evil", "actor": HOSTILE, "source": {"agent": "a", "adapter": "opencode"}}
    made = [
        identity.stamp({**about, "type": kind, "payload": evil})
        for kind in [*types.split(), "agent.error", "turn.ended"]
    ]
    aside(record, home, made)
    with looking(browser, home) as (page, served):
        ran: list[str] = []
        page.on("dialog", lambda dialog: (ran.append(dialog.message), dialog.dismiss()))
        page.on("pageerror", lambda error: ran.append(str(error)))
        for path in (
            "/",
            "/s/ses_evil",
            "/s/ses_evil/timeline",
            "/s/ses_evil/files",
            "/s/ses_evil/events",
            "/?q=alert",
            "/work",
            "/costs",
            f"/compare/ses_evil/{ROOT}",
        ):
            page.goto(served.base + path)
            page.wait_for_selector(".page, .session")
            assert page.locator("#main img, #main script, .palette img, .palette script").count() == 0, path
            if "?q" in path:
                expect(page.locator("#found .hit .snippet").first).to_contain_text("<script>alert(2)</script>")
        page.goto(f"{served.base}/s/ses_evil/events")
        page.locator(".events tr").nth(4).click()
        expect(page.locator(".detail")).to_contain_text("<script>alert(2)</script>")
        assert ran == []
