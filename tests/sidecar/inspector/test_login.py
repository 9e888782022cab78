"""What opens the page in a real Chromium: a secret that only the page's own address has, and only while it is open."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.sidecar.inspector.conftest import TITLE, WAIT_MS, Served, inspecting
from tests.sidecar.support import wait_for

SECRET = re.compile(r"[0-9a-f]{64}")


@contextmanager
def another() -> Iterator[tuple[str, list[str]]]:
    """Another server on this machine, such as one that an agent started: its address, and all that it was sent."""
    heard: list[str] = []

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(f"{self.requestline}\n{self.headers}")
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<script>fetch('/more?' + JSON.stringify(sessionStorage) + document.cookie)</script>")

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", heard
        server.shutdown()


@contextmanager
def opened(browser: Browser) -> Iterator[tuple[BrowserContext, Page]]:
    """A browser without anything, and its first tab."""
    with browser.new_context() as context:
        context.set_default_timeout(WAIT_MS)
        yield context, context.new_page()


def test_another_server_on_this_machine_gets_nothing(browser: Browser, served: Served) -> None:
    with opened(browser) as (context, page), another() as (address, heard):
        page.goto(served.link)
        expect(page.locator(".row").first).to_be_visible()
        page.goto(address)
        with context.expect_event("request", lambda request: "/more" in request.url):
            context.new_page().goto(address)
        page.wait_for_load_state("networkidle")
        assert len(heard) > 1
        known = [each for each in heard if SECRET.search(each) or "cookie:" in each.lower()]
        assert known == [] == context.cookies()
        page.go_back()
        expect(page.locator(".row").first).to_be_visible()


def test_other_tabs_need_no_link_while_one_is_open(browser: Browser, served: Served) -> None:
    with opened(browser) as (context, page):
        page.goto(served.base + "/work")
        expect(page.locator(".empty")).to_contain_text("durable-stream inspect")
        with_link = context.new_page()
        with_link.goto(served.link)
        expect(with_link.locator(".row").first).to_be_visible()
        assert "#" not in with_link.url, "it is in no address that somebody copies"
        expect(page.locator(".empty")).not_to_contain_text("durable-stream inspect")
        with_link.reload()
        expect(with_link.locator(".row").first).to_be_visible()
        for address in ("/", f"/#{'0' * 64}"):
            tab = context.new_page()
            tab.goto(served.base + address)
            expect(tab.locator(".row").first).to_be_visible()
            expect(tab.locator("#live")).to_have_text("live")
        with_link.reload()
        expect(with_link.locator(".row").first).to_be_visible()


def test_a_page_whose_server_is_gone_says_so_until_it_is_back(browser: Browser, filled: Path) -> None:
    with opened(browser) as (context, page):
        faults: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        gone = page.locator("#gone")
        with inspecting(filled) as first:
            page.goto(first.link)
            page.locator(".row", has_text=TITLE).click()
            expect(page.locator(".talk")).to_be_visible()
            expect(page.locator("#live")).to_have_text("live")
            expect(gone).to_be_hidden()
        expect(gone).to_contain_text("has ended")
        page.keyboard.press("[")
        page.get_by_role("link", name="Work").click()
        expect(page.locator(".talk")).to_be_visible()  # what can still be read stays
        page.go_back()
        with inspecting(filled, "--port", first.base.rpartition(":")[2]) as again:
            expect(gone).to_contain_text("runs anew")
            other = context.new_page()
            other.goto(again.link)
            expect(other.locator("#live")).to_have_text("live")
            expect(page.locator("#live")).to_have_text("live")
            expect(gone).to_be_hidden()
            expect(page.locator(".talk")).to_be_visible()
        assert faults == []


def test_the_browsers_arguments_lead_to_the_link_and_do_not_have_it(
    browser: Browser, filled: Path, tmp_path: Path
) -> None:
    told, program = tmp_path / "told", tmp_path / "browser"
    program.write_text(f'#!/bin/sh\necho "$@" > {told}.new; mv {told}.new {told}\n')
    program.chmod(0o700)
    with inspecting(filled, "--browser", BROWSER=str(program)) as served:
        wait_for(told.exists, "the browser")
        address = told.read_text().strip()
        assert not SECRET.search(address)
        leading = Path(address.removeprefix("file://"))
        assert leading.stat().st_mode & 0o777 == 0o600
        with opened(browser) as (_, page):
            page.goto(address)
            expect(page.locator(".row").first).to_be_visible()
            assert page.url == f"{served.base}/"
    assert not leading.exists()
