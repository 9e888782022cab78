"""The page of a session: its tabs, its slider and its addresses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect

from tests.sidecar.cli.helpers import run_process
from tests.sidecar.inspector.conftest import ROOT, TITLE, Served


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


def test_an_event_has_the_number_that_the_log_gives_it(page: Page, served: Served, filled: Path) -> None:
    offsets = [int(row[2]) for row in run_process(filled, "log", ROOT).rows()[1:]]
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
    at = run_process(filled, "state", ROOT, "--at", "14", "--json").objects()[0]
    assert (at["at"], at["event"]["id"]) == (14, run_process(filled, "log", ROOT).rows()[15][3])


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
    context: Any, browser: Browser, served: Served
) -> None:
    own = browser.new_context(storage_state=context.storage_state())
    own.clock.install(time=0)
    page = own.new_page()
    page.goto(f"{served.base}/s/{ROOT}/events?at=30")
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
