"""Each page of the inspector, in a real Chromium, over sessions that a real OpenCode recorded."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect

from sidecar.home import Home
from sidecar.inspector.search import MOST_SESSIONS
from sidecar.read.wording import ago, lasted, money
from streams.event import StreamEvent
from streams.identity import seeded_identity
from tests.bridge.opencode.playing2 import play2
from tests.sidecar.bad_stores import damage_in_database
from tests.sidecar.cli.helpers import make_home, run
from tests.sidecar.cli.test_troubles import doubting
from tests.sidecar.inspector.conftest import (
    COUNT,
    DAY,
    DEMO,
    NOW,
    ROOT,
    TITLE,
    WAIT_MS,
    Served,
    aside,
    inspecting,
    looking,
    record,
)
from tests.sidecar.read.conversations import announced_late


def test_sessions_are_listed_with_their_project_and_open_by_keyboard(page: Page, served: Served) -> None:
    page.goto(served.base)
    row = page.locator(".row", has_text=TITLE)
    expect(row).to_contain_text("2 children")
    expect(page.locator(".group", has_text="/home/ada/shop")).to_be_visible()
    page.keyboard.press("j")
    expect(page.locator(".row.at")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(page.locator(".tabs")).to_be_visible()
    page.go_back()
    row.click()
    expect(page.locator("h1")).to_have_text(TITLE)
    expect(page.locator(".side .leaf")).to_have_count(3)


def many(count: int) -> list[StreamEvent]:
    """Sessions of two projects and agents: every tenth failed, the last one waits for a person."""
    identity, now = seeded_identity(3), int(time.time() * 1000)
    events = []
    for number in range(count):
        session, agent = f"ses_{number:05}", "plan" if number % 4 == 0 else "build"
        about = {"stream_id": session, "actor": agent, "source": {"agent": agent, "adapter": "opencode"}}
        place = "/home/ada/shop" if number % 2 else "/home/ada/site"
        given: list[tuple[str, dict[str, Any]]] = [
            (
                "lifecycle.session.created",
                {"title": f"Task {number}", "directory": place, "lineage": "root", "agent": agent},
            ),
            ("turn.started", {"message": "m", "model": {"provider": "mock", "model": f"mock-{number % 3}"}}),
        ]
        if number == count - 1:
            asked = {"state": "asked", "kind": "permission", "request": "r", "metadata": {"command": "git push"}}
            given.append(("workflow.checkpoint", asked))
        else:
            given.append(("turn.ended", {"message": "m", "outcome": "completed" if number % 10 else "failed"}))
        for kind, payload in given:
            events.append(
                identity.stamp({**about, "ts": now, "type": kind, "payload": {"session": session, **payload}})
            )
    return events


def test_two_thousand_sessions_are_grouped_and_filtered(browser: Browser, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    aside(record, home, many(2000))
    with looking(browser, home) as (page, _):
        groups = page.locator("h2.group")
        expect(groups).to_contain_text(
            ["Waiting for you1 session", "/home/ada/site1000 sessions200 failed", "/home/ada/shop999"]
        )
        expect(page.locator(".row").nth(1)).to_contain_text("git push")
        expect(page.locator(".row:not(.heads)")).to_have_count(17)
        page.get_by_text("more of /home/ada/shop").click()
        expect(page.locator(".row:not(.heads)")).to_have_count(217)
        page.get_by_label("agent", exact=True).select_option("plan")
        page.get_by_label("model", exact=True).select_option("mock/mock-0")
        page.locator(".chip.failed").click()
        expect(groups).to_have_text("/home/ada/site34 sessions")
        page.get_by_role("button", name="Clear").click()
        day = page.locator(".days button:enabled")
        expect(day).to_have_count(1)
        day.click()
        expect(groups).to_have_count(3)
        page.locator(".chip.failed").click()
        expect(groups).to_have_count(1)
        page.locator(".row").nth(1).click()
        page.wait_for_selector(".tabs")
        page.go_back()
        expect(page.locator(".chip.failed")).to_have_attribute("aria-pressed", "true")
        expect(page.locator(".days [aria-pressed=true]")).to_have_count(1)


def test_the_page_and_the_terminal_tell_durations_ages_and_costs_the_same(page: Page, served: Served) -> None:
    page.goto(served.base)
    spans = [
        -1,
        0,
        1,
        999,
        1000,
        1250,
        9_999,
        59_949,
        59_950,
        60_000,
        185_999,
        3_600_000,
        86_400_000,
        10**9,
        366 * 86_400_000,
    ]
    told = page.evaluate(
        "async (all) => { const lib = await import('/page/lib.js'); return all.map(lib.span); }", spans
    )
    assert told == [lasted(ms) for ms in spans] and lasted(10**12) == page.evaluate(
        "async () => (await import('/page/lib.js')).span(10 ** 12)"
    )
    ages = [0, 59_000, 60_000, 7_200_000, 10 * 86_400_000]
    shown = "async (all) => { const lib = await import('/page/lib.js'); return all.map((ms) => lib.ago(1, ms + 1)); }"
    assert page.evaluate(shown, ages) == [ago(ms) for ms in ages]
    costs = [0, 1e-9, 0.00499, 0.005, 0.125, 0.375, 0.994, 0.995, 1.005, 12.3, 1e9, 1e10, -1]
    shown = "async (all) => { const lib = await import('/page/lib.js'); return all.map(lib.money); }"
    assert page.evaluate(shown, costs) == [money(cost).replace("-", "–") for cost in costs]


def test_the_palette_finds_events_by_session_and_opens_one_at_its_turn(page: Page, served: Served) -> None:
    page.goto(f"{served.base}/s/{ROOT}/timeline")
    page.wait_for_selector(".lanes")
    page.keyboard.press("/")
    expect(page.locator("#found .in").first).to_have_attribute("aria-selected", "true")  # the newest sessions
    page.keyboard.type('"identity, not equality"')
    hit = page.locator("#found .hit", has_text="says").first
    expect(hit.locator("mark")).to_have_text("identity, not equality")
    expect(page.locator("#found [role=group]")).to_have_count(1)
    page.keyboard.press("ArrowDown")
    expect(hit).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Enter")
    expect(page.locator(".palette")).to_be_hidden()
    expect(page.locator(".talk .said.at")).to_be_in_viewport()
    expect(page.locator(".detail")).to_contain_text("identity, not equality")
    page.go_back()
    expect(page.locator("#find")).to_have_value('"identity, not equality"')
    expect(hit).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Escape")
    expect(page).to_have_url(f"{served.base}/s/{ROOT}/timeline")
    expect(page.locator(".lanes")).to_be_visible()


def test_the_palette_takes_operators_and_says_which_it_does_not_understand(page: Page, served: Served) -> None:
    page.goto(f"{served.base}/costs")
    page.keyboard.press("Control+k")
    page.get_by_role("button", name="failed").click()
    expect(page.locator("#found .hit .bad").first).to_be_visible()
    page.keyboard.type("tool:bash")
    expect(page.locator("#found .hit")).to_have_text([re.compile("^bashpython3 test_login.py → exit 1")])
    page.locator("#find").fill("project:shop agent:build")
    expect(page.locator("#found .in b")).to_have_text(TITLE)
    page.locator("#find").fill("project:nowhere login")
    expect(page.locator(".palette [role=status]")).to_have_text("No session and no event fits.")
    page.locator("#find").fill("login since:whenever")
    expect(page.locator(".palette [role=status] .bad")).to_contain_text("'whenever' is not a time")


def test_the_palette_says_how_many_sessions_it_does_not_show(browser: Browser, imported: Path) -> None:
    with looking(browser, imported) as (page, _):
        page.set_viewport_size({"width": 390, "height": 800})
        page.keyboard.press("/")
        outcome, heads = page.locator(".palette [role=status]"), page.locator("#found .in")
        expect(outcome).to_have_text(f"8 of {COUNT} sessions, the newest first")
        for number in range(8):
            expect(heads.nth(number)).to_have_attribute("href", re.compile(f"^/s/ses_{number:02}"))
        for text, said in (
            (f"until:{NOW - DAY}", "19 sessions"),
            (f"since:{NOW - DAY // 12}", "1 session"),
            (f"since:{NOW - 2 * DAY}", f"{MOST_SESSIONS} of 24 sessions"),
            ("project:work", f"{MOST_SESSIONS} of {COUNT} sessions"),
            ("by hand", f"{MOST_SESSIONS} of {COUNT} sessions, with 35 events"),
        ):
            page.locator("#find").fill(text)
            expect(outcome).to_have_text(said)
        apart = """(all) => all.map((each) => [...each.children].map((part) => {
            const text = document.createRange();
            text.selectNodeContents(part);
            return { state: text.getBoundingClientRect(), box: part.getBoundingClientRect() };
        })).every(([{ state }, , { box }]) => state.right <= box.left && box.right <= innerWidth)"""
        assert heads.evaluate_all(apart), "the status and the time do not overlap"


def test_a_stretch_of_the_timeline_is_summed_up(page: Page, served: Served) -> None:
    page.goto(f"{served.base}/s/{ROOT}/timeline")
    tools = page.locator(".timeline .facts span", has_text="tools")
    expect(tools).to_have_text("tools 8")
    page.locator(".timeline select").select_option(label=page.locator(".timeline option").nth(2).inner_text())
    expect(tools).to_have_text("tools 1")
    expect(page.locator(".timeline .facts .wait")).to_contain_text("waiting for a person")
    page.get_by_text("Show all").click()
    expect(tools).to_have_text("tools 8")
    column = page.locator(".map button")
    column.first.focus()
    page.keyboard.press("ArrowRight")
    expect(column.nth(1)).to_be_focused()
    page.keyboard.press("Enter")
    expect(tools).to_have_text("tools 1")
    expect(column.nth(1)).to_have_attribute("aria-pressed", "true")
    page.get_by_text("Show all").click()
    expect(tools).to_have_text("tools 8")
    told = page.locator(".timeline select option:checked")
    for key, chosen in (("+", "the chosen stretch"), (">", "the chosen stretch"), ("-", "All turns")):
        page.keyboard.press(key)
        expect(told).to_have_text(chosen)
    column.first.hover()
    page.mouse.wheel(0, -100)
    expect(told).to_have_text("the chosen stretch")
    expect(column.first).to_have_attribute("aria-pressed", "true")
    page.mouse.wheel(0, 100)
    expect(told).to_have_text("All turns")
    box = page.locator(".lanes").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 4, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 3, box["y"] + 60, steps=4)
    page.mouse.up()
    expect(tools).to_have_text("tools 1")


PAINTED = """async (share) => {
  const canvas = document.querySelector(".track canvas");
  for (let painted = 0; painted < share; await new Promise(requestAnimationFrame)) {
    const row = canvas.getContext("2d").getImageData(0, canvas.height - 2, canvas.width, 1).data;
    painted = row.filter((value, at) => at % 4 === 3 && value > 0).length / canvas.width;
  }
}"""
"""Waits until so much of the slider's strip has a colour."""


def test_the_map_of_turns_is_the_strip_of_the_slider(page: Page, served: Served) -> None:
    page.goto(f"{served.base}/s/{ROOT}")
    child = page.locator(".leaf", has_text="Look at login.py")
    page.wait_for_selector(".track canvas")
    page.evaluate(PAINTED, 0.8)  # from the first turn on
    child.click()
    expect(page.locator("h1")).to_contain_text("Look at login.py")
    page.evaluate(PAINTED, 0.5)


def test_the_keys_work_on_every_page_and_are_listed(page: Page, served: Served) -> None:
    for path, row in {"/": ".row", f"/s/{ROOT}": ".talk [data-row]", f"/s/{ROOT}/events": "tr"}.items():
        page.goto(served.base + path)
        page.wait_for_selector(row)
        page.keyboard.press("j")
        expect(page.locator(f"{row}.at")).to_have_count(1)
        page.keyboard.press("?")
        expect(page.locator("#keys")).to_contain_text("one event back, one event on")
        page.keyboard.press("Escape")
        expect(page.locator("#keys")).to_be_hidden()
        page.keyboard.press("/")
        expect(page.locator("#find")).to_be_focused()
        page.keyboard.press("Escape")
        expect(page.locator(".palette")).to_be_hidden()
    page.goto(f"{served.base}/s/{ROOT}/events")
    page.wait_for_selector("tr")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator(".detail")).to_be_visible()
    page.goto(f"{served.base}/s/{ROOT}/timeline")
    page.wait_for_selector(".lanes a")
    page.keyboard.press("j")
    expect(page.locator(".lanes a").first).to_be_focused()


def test_a_call_and_a_file_tell_who_allowed_them_and_who_changed_them(page: Page, served: Served) -> None:
    page.goto(f"{served.base}/s/{ROOT}/files")
    expect(page.locator(".asked")).to_contain_text("Allowed once by user after")
    page.locator(".asked .link").click()
    expect(page.locator(".detail .chain").first).to_contain_text("git commit")
    page.locator(".file .link").first.click()
    expect(page.locator(".detail h3")).to_have_text("/home/ada/shop/login.py")
    expect(page.locator(".detail .chain li")).to_have_text(re.compile(f"{TITLE} \\+1 −1"))
    page.goto(f"{served.base}/s/{ROOT}/timeline")
    page.locator('.lanes a:has(title:text("git commit"))').last.click()
    expect(page.locator(".detail dl")).to_contain_text("approved once by user")
    # The question and the answer stand before the call that waited for them, as in `why`.
    page.goto(f"{served.base}/s/{ROOT}/events")
    page.locator("tr", has_text="git commit").last.click()
    expect(page.locator(".detail .chain").first).to_contain_text("once")


def test_why_is_a_graph_across_sessions_down_and_up(page: Page, served: Served, filled: Path) -> None:
    asked = run(filled, "query", "login test fails", "--type", "human.input", "--json").objects()[0]
    page.goto(f"{served.base}/e/{asked['event']['id']}")
    expect(page.locator(".up")).to_have_text(TITLE)
    expect(page.locator(".chain h2")).to_have_text(["Why it happened", "What came of it", "What its turn did"])
    expect(page.locator(".chain.after li")).to_contain_text(["bash", "edit", "bash"])
    effects = page.locator(".chain:not(.after) ol").last.locator("li")
    expect(effects).to_contain_text(["turn", "spawns", "prompt", "turn end"])
    expect(page.locator(".chain path")).to_have_count(page.locator(".chain:not(.after) li").count() - 1)
    effects.filter(has_text="Look at login.py").last.locator("a").first.click()
    expect(page.locator(".up a").last).to_contain_text("Look at login.py")
    expect(page.locator(".chain ol").first).to_contain_text("The login test fails")
    page.locator(".up a").first.click()
    expect(page.locator("h1")).to_have_text(TITLE)


def test_forks_and_background_work_are_beside_the_session(browser: Browser, tmp_path: Path) -> None:
    home = aside(make_home, tmp_path / "home", "fork")
    streams = run(home, "streams", "--json").objects()
    stream = next(each["stream_id"] for each in streams if each["fork"] is None)
    identity = seeded_identity(5)
    about = {"stream_id": "ses_work", "actor": "build", "source": {"agent": "build", "adapter": "opencode"}}
    steps: list[tuple[str, dict[str, Any]]] = [
        ("lifecycle.session.created", {"title": "Some work", "lineage": "root", "directory": "/home/ada/project"}),
        ("turn.started", {"message": "m"}),
        ("turn.ended", {"message": "m", "outcome": "completed"}),
    ]
    made = [identity.stamp({**about, "type": kind, "payload": {"session": "ses_work", **each}}) for kind, each in steps]
    intent = {"intent": "int_1", "prompt": "Do", "title": "Some work", "parent": stream, "directory": "/", "ts": 1}
    started = {"intent": "int_1", "session": "ses_work", "ts": 2}
    own = {"stream_id": "agent/intents", "actor": "intents", "source": {"agent": "intents", "adapter": "engine"}}
    for kind, payload in (("intent.created", intent), ("intent.starting", started), ("intent.started", started)):
        made.append(identity.stamp({**own, "type": kind, "payload": payload, "metadata": {"role": "output"}}))
    mark = {"stream_id": stream, "actor": "user", "source": {"agent": "user", "adapter": "sidecar"}}
    made.append(identity.stamp({**mark, "type": "stream.pinned", "payload": {}}))
    made.append(identity.stamp({**mark, "type": "stream.named", "payload": {"name": "Keep this"}}))
    aside(record, home, made)
    with looking(browser, home) as (page, served):
        expect(page.locator(".row", has_text="Keep this")).to_contain_text("pinned")
        page.goto(f"{served.base}/s/{stream}/timeline")
        expect(page.locator("h1")).to_have_text("Keep this")
        expect(page.locator(".side h2")).to_have_text(["1 session", "In the background", "Forks"])
        expect(page.locator(".lanes .name")).to_contain_text(["Some work · background"])
        page.locator(".leaf", has_text="Some work").click()
        expect(page.locator(".side h2")).to_have_text(["1 session", "Started by"])
        page.goto(f"{served.base}/s/{stream}")
        page.goto(served.base)
        page.locator(".forked", has_text="(fork").get_by_text("Compare").click()
        expect(page.locator(".sums thead a").first).to_have_attribute("href", f"/s/{stream}")
        page.locator(".sums thead a").first.click()
        page.locator(".leaf", has_text="(fork").click()
        expect(page.locator(".side h2")).to_have_text(["1 session", "Forked from"])
        # What work started stands below it.
        below = {**intent, "intent": "int_2", "title": "Work of work", "parent": "ses_work"}
        first = identity.stamp({**own, "type": "intent.created", "payload": below, "metadata": {"role": "output"}})
        aside(record, home, [first])
        page.goto(f"{served.base}/work")
        expect(page.locator(".card .title")).to_have_text(["Some work", "Work of work"])
        expect(page.locator(".card").nth(1)).to_have_css("margin-left", "24px")


def test_what_failed_is_red_and_one_click_away(page: Page, served: Served) -> None:
    page.goto(served.base)
    page.locator(".chip.failed").click()
    expect(page.locator(".row .status.failed")).to_have_count(1)
    page.locator(".row", has=page.locator(".failed")).click()
    expect(page.locator(".head .status.failed")).to_be_visible()
    page.locator(".head .link.bad").click()
    expect(page.locator(".detail .chain li.this .bad")).to_be_visible()
    page.keyboard.press("2")
    expect(page.locator(".lanes .bad")).to_contain_text("failed")


def test_two_runs_are_compared(page: Page, served: Served, filled: Path) -> None:
    streams = [each["stream_id"] for each in run(filled, "streams", "--json").objects()]
    other = next(each for each in streams if each != ROOT)
    page.goto(f"{served.base}/compare/{ROOT}/{other}")
    expect(page.locator(".sums").first).to_contain_text("bash")
    expect(page.locator(".picture .lanes")).to_have_count(2)
    expect(page.locator(".beside .differs", has_text="only left").first).to_be_visible()
    page.locator("summary", has_text="then they part").click()
    expect(page.get_by_text("ends here")).to_have_count(1)
    page.goto(f"{served.base}/s/{ROOT}")
    page.locator(".facts").get_by_text("Compare").click()
    expect(page.locator("#main")).to_contain_text("Choose the session")
    expect(page.locator(f'.page .sums a[href="/compare/{ROOT}/{ROOT}"]')).to_have_count(0)
    page.locator(f'.sums a[href="/compare/{ROOT}/{other}"]').click()
    expect(page.locator("summary", has_text="then they part")).to_be_visible()
    page.goto(f"{served.base}/compare/{ROOT}/{ROOT}")
    expect(page.locator("#main .empty")).to_contain_text(ROOT)


def test_only_changed_lines_of_a_diff_look_added_or_removed(page: Page, served: Served) -> None:
    page.goto(served.base)
    new = "--- /dev/null\n+++ made.txt\n@@ -0,0 +1 @@\n+x\n"
    gone = "diff --git a/q b/q\n--- a/q\n+++ /dev/null\n@@ -1,2 +0,0 @@\n--- a\n-b\n\\ No newline at end of file\n"
    lines = "patch => import('/page/lib.js').then(lib => [...lib.diffOf(patch).children].map(each => each.className))"
    assert page.evaluate(lines, new + gone + new) == ["hunk", "add", "of", "hunk", "del", "del", "same", "hunk", "add"]
    assert page.evaluate(lines, "@@\n--- a\n+b\n") == ["hunk", "del", "add"]


def test_one_session_is_compared_at_two_moments(page: Page, served: Served) -> None:
    page.goto(f"{served.base}/s/{ROOT}?at=20")
    page.get_by_text("Compare with now").click()
    expect(page).to_have_url(f"{served.base}/compare/{ROOT}/{ROOT}?at=20")
    turns = page.locator(".beside").nth(1).locator("tbody tr")
    expect(turns).to_contain_text(["The login test fails", "Thanks. Commit it."])
    expect(turns.nth(0)).to_have_class("differs")
    expect(turns.nth(1).locator("td").nth(1)).to_have_text("–")
    expect(page.locator(".halves .diff")).to_have_count(1)
    expect(page.locator(".halves .diff .add")).to_have_text(re.compile("users.get"))
    page.get_by_label("Earlier event").fill("50")
    page.get_by_label("Later event").fill("49")
    page.get_by_role("button", name="Compare").click()
    expect(page).to_have_url(f"{served.base}/compare/{ROOT}/{ROOT}?at=50&to=49")
    expect(turns.nth(0)).to_contain_text("same")
    turns.nth(0).locator("a").first.click()
    expect(page.locator(".talk .at")).to_be_visible()


def test_a_page_that_does_not_exist_leads_back(page: Page, served: Served) -> None:
    for path in ("/nope", "/s/a/b/c"):
        answer = page.goto(served.base + path)
        assert answer is not None and answer.status == 404
        expect(page.locator("h1")).to_have_text("There is no such page")
    page.locator("#main").get_by_role("link").click()
    expect(page.locator(".row").first).to_be_visible()


def test_opencodes_own_agents_are_work_too(browser: Browser, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    aside(record, home, announced_late(list(play2("background").log.events.values())))
    with looking(browser, home) as (page, _):
        page.get_by_role("link", name="Work").click()
        expect(page.locator("#main article .status")).to_have_text(["failed", "completed"])


def test_costs_work_and_health_answer_their_questions(page: Page, served: Served, filled: Path) -> None:
    page.goto(f"{served.base}/costs")
    page.get_by_text("by model").click()
    expect(page.locator(".sums").first).to_contain_text("mock/mock-1")
    page.get_by_text("by session").click()
    expect(page.locator(".sums .total").first).to_contain_text("together")
    page.get_by_role("button", name="7 days").click()
    expect(page).to_have_url(f"{served.base}/costs?by=session&days=7")
    page.get_by_role("button", name="all", exact=True).click()
    expect(page.locator(".spent > svg")).to_have_attribute("aria-label", re.compile("^Tokens by day: together"))
    page.reload()
    expect(page.get_by_role("button", name="by session")).to_have_attribute("aria-pressed", "true")
    page.goto(f"{served.base}/work")
    expect(page.locator(".page")).to_contain_text("No background work yet")
    page.goto(f"{served.base}/health")
    found = run(filled, "status", "--json").objects()[0]
    expect(page.locator("h1")).to_have_text(found["verdict"].replace(", but", "").rstrip(":.") + ".")
    expect(page.locator("#main dl")).to_contain_text(f"records in {found['log']['streams']} streams")
    expect(page.locator("#main dl dt")).to_contain_text(["last record", "intact"])


def test_an_effect_in_doubt_is_decided_with_a_click(browser: Browser, home: Home) -> None:
    asked = aside(doubting, home)
    with looking(browser, home.path) as (page, served):
        page.goto(f"{served.base}/work")
        card = page.locator(".card.waits")
        expect(card).to_contain_text('pay {"sum": 7}')
        expect(card.get_by_role("button")).to_have_text(["it happened", "try again", "give up"])
        expect(card.locator("input")).to_have_count(0)
        card.get_by_text("give up").click()
        expect(card).to_have_count(0)
    assert run(home.path, "checkpoints", asked, "--json").objects()[0]["answer"] == ["give up"]
    assert run(home.path, "stop").code == 0


def test_nine_tabs_are_live_and_one_that_is_left_takes_over(browser: Browser, tmp_path: Path) -> None:
    home = aside(make_home, tmp_path / "home", "chat")
    identity = seeded_identity(9)
    with inspecting(home) as served:
        context = browser.new_context()
        context.set_default_timeout(WAIT_MS)
        tabs = []
        for number in range(9):
            tabs.append(context.new_page())
            tabs[-1].goto(served.base if number else served.link)
            expect(tabs[-1].locator("#live")).to_have_text("live")
        expect(tabs[-1].locator("a.row")).to_be_visible()
        tabs[-1].keyboard.press("j")
        expect(tabs[-1].locator(".row.at")).to_have_count(1)
        for turn in range(2):
            title = f"Session {turn}"
            payload = {"session": f"ses_{turn}", "title": title, "directory": "/home/ada/shop", "lineage": "root"}
            about = {"stream_id": f"ses_{turn}", "actor": "build", "source": {"agent": "build", "adapter": "opencode"}}
            aside(record, home, [identity.stamp({**about, "type": "lifecycle.session.created", "payload": payload})])
            for tab in tabs:
                expect(tab.locator(".row", has_text=title)).to_be_visible()
            tabs.pop(0).close()  # the one that listens for all
        expect(tabs[-1].locator(".row.at")).to_have_count(1)  # the list was drawn anew around it
        context.close()


def test_a_damaged_log_is_shown_up_to_the_damage(browser: Browser, tmp_path: Path) -> None:
    home = aside(make_home, tmp_path / "home", DEMO, "chat")
    damage_in_database(home / "store", 0.9)
    with looking(browser, home) as (page, served):
        views = [f"/s/{ROOT}{view}" for view in ("", "/timeline", "/files", "/events")]
        for path in ("/", *views, "/work", "/costs", "/health", f"/compare/{ROOT}", "/?q=login"):
            page.goto(served.base + path)
            expect(page.locator(".page, .session")).to_be_visible()
            expect(page.locator("#damage")).to_contain_text("The log is damaged")
        page.goto(served.base)
        page.locator(".row", has_text=TITLE).click()
        expect(page.locator(".talk")).to_contain_text("identity, not equality")


def test_new_events_arrive_by_themselves(browser: Browser, tmp_path: Path) -> None:
    home = aside(make_home, tmp_path / "home", "chat")
    stream = run(home, "streams", "--json").objects()[0]["stream_id"]
    with looking(browser, home) as (page, served):
        expect(page.locator("#live")).to_have_text("live")
        page.goto(f"{served.base}/s/{stream}")
        expect(page.locator(".talk")).to_be_visible()
        identity = seeded_identity(9)
        said = {
            "stream_id": stream,
            "type": "human.input",
            "actor": "user",
            "source": {"agent": "user", "adapter": "opencode"},
            "payload": {"session": stream, "message": "msg_new", "parts": [{"type": "text", "text": "And now this."}]},
        }
        aside(record, home, [identity.stamp(said)])
        expect(page.locator(".talk")).to_contain_text("And now this.")
