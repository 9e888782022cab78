"""What runs now and what waits for a person stand where one looks, with what is around them, on narrow screens too."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from streams.event import StreamEvent
from streams.identity import seeded_identity
from tests.sidecar.inspector.conftest import Served, aside, looking, record
from tests.sidecar.support import wait_for

LONG = "x" * 300
EVIL = "make <img src=x onerror=alert(1)> \u202etset"
SHOWN = "make <img src=x onerror=alert(1)>"


def happened() -> list[StreamEvent]:
    """A session whose child runs a command, and one that asks; the records of both are a minute old."""
    identity, begun, made = seeded_identity(8), int(time.time() * 1000) - 60_000, []

    def add(stream: str, type_: str, session: str | None = None, **payload: Any) -> None:
        about = {"stream_id": stream, "actor": "build", "source": {"agent": "build", "adapter": "opencode"}}
        given = {"session": session or stream, **payload}
        made.append(identity.stamp({**about, "ts": begun + len(made), "type": type_, "payload": given}))

    add("ses_run", "lifecycle.session.created", title="Run", directory="/shop", lineage="root", agent="build")
    add("ses_run", "turn.started", message="m", agent="build", model={"provider": LONG, "model": "mock-1"})
    ran = {"turn": "m", "message": "a", "kind": "tool", "tool": "bash"}
    add("ses_run", "execution.step.started", call="c1", input={"command": EVIL}, **ran)
    add("ses_ask", "lifecycle.session.created", title=EVIL, directory="/shop", lineage="root", agent="build")
    add("ses_ask", "human.input", message="q", parts=[{"type": "text", "text": LONG}])
    add("ses_ask", "turn.started", message="q", agent="build", model={"provider": "mock", "model": "mock-1"})
    add("ses_ask", "execution.output", kind="text", text="The tests pass, so I push.", turn="q", message="b")
    add("ses_ask", "execution.output", session="ses_other", kind="text", text="Another one.", turn="o", message="o")
    asked = {"kind": "permission", "request": "r", "turn": "q", "permission": "bash", "patterns": ["git push"]}
    add("ses_ask", "workflow.checkpoint", state="asked", metadata={"command": "git push"}, **asked)
    add("ses_ask", "execution.output", kind="text", text="It came later.", turn="q", message="b")

    add("ses_top", "lifecycle.session.created", title="Top", directory="/shop", lineage="root", agent="build")
    add("ses_top", "turn.started", message="t", agent="build", model={"provider": "mock", "model": "mock-1"})
    add("ses_top", "agent.spawned", turn="t", message="a", call="c2", child="ses_sub", description="Look", agent="plan")
    add("ses_top", "lifecycle.session.created", session="ses_sub", title="Sub", parent="ses_top", agent="plan")
    add("ses_top", "turn.started", session="ses_sub", message="u", agent="plan")
    failed = {"kind": "tool", "tool": "bash", "status": "error", "error": "no such file", "input": {"command": "ls x"}}
    add("ses_top", "execution.step", session="ses_sub", turn="u", message="v", call="c3", **failed)
    add("ses_top", "turn.ended", session="ses_sub", message="u", outcome="completed")
    add("ses_top", "turn.ended", message="t", outcome="completed")

    add("ses_wide", "lifecycle.session.created", title=LONG, directory=f"/{LONG}", lineage="root", agent="build")
    add("ses_wide", "human.input", message="w", parts=[{"type": "text", "text": LONG}])
    add("ses_wide", "turn.started", message="w", agent="build", model={"provider": "mock", "model": LONG})
    edit = {"kind": "tool", "tool": "edit", "input": {"filePath": f"/{LONG}"}, "metadata": {"diff": f"@@\n+{LONG}"}}
    add("ses_wide", "execution.step", turn="w", message="a", call="c4", status="completed", **edit)
    add("ses_wide", "execution.step", turn="w", message="a", kind="inference", cost=0.5, tokens={"input": 9})

    add("ses_long", "lifecycle.session.created", title="Long", directory="/shop", lineage="root", agent="build")
    add("ses_long", "human.input", message="l", parts=[{"type": "text", "text": "Count"}])
    add("ses_long", "turn.started", message="l", agent="build", model={"provider": "mock", "model": "mock-1"})
    output = "\n".join(f"\x1b[31m{EVIL} {number}\x1b[0m" for number in range(152))
    diff = "@@ -1,0 +1,60 @@\n" + "\n".join(f"+new {number}" for number in range(60))
    for call, given in (
        ("c5", {"tool": "bash", "input": {"command": "count"}, "output": output}),
        ("c6", {"tool": "edit", "input": {"filePath": "/shop/a"}, "metadata": {"diff": diff}}),
    ):
        add("ses_long", "execution.step", kind="tool", turn="l", message="a", call=call, status="completed", **given)

    def own(type_: str, **payload: Any) -> None:
        about = {"stream_id": "agent/intents", "actor": "intents", "source": {"agent": "intents", "adapter": "engine"}}
        made.append(identity.stamp({**about, "type": type_, "payload": payload, "metadata": {"role": "output"}}))

    about = {"prompt": "Do", "title": LONG, "parent": None, "root": "r", "directory": "/shop"}
    own("intent.created", intent="int_1", ts=1, **about)
    own("intent.starting", intent="int_1", ts=2, session="ses_run")
    own("intent.started", intent="int_1", ts=2, session="ses_run")
    diff = "diff --git a/notes.md b/notes.md\n--- /dev/null\n+++ b/notes.md\n@@ -0,0 +1 @@\n+made in a copy\n"
    changes = {"saved": True, "count": 1, "files": [{"file": "notes.md", "added": 1, "removed": 0}], "diff": diff}
    about |= {"title": "Write notes", "parent": "ses_top", "root": "ses_top"}
    own("intent.created", intent="int_2", ts=1, **about)
    own("intent.starting", intent="int_2", ts=begun, session="ses_made")
    own("intent.started", intent="int_2", ts=begun, session="ses_made")
    own("intent.completed", intent="int_2", ts=begun + 100, result="Done.", changes=changes)
    return made


@pytest.fixture(scope="module")
def open_(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Page, Served, list[str]]]:
    """A page over these sessions, and the ids of their events."""
    home: Path = tmp_path_factory.mktemp("now") / "home"
    home.mkdir(mode=0o700)
    made = happened()
    aside(record, home, made)
    with looking(browser, home) as (page, served):
        expect(page.locator(".row").first).to_be_visible()
        yield page, served, [each.id for each in made]


def test_a_running_tool_is_in_the_conversation_with_its_seconds(open_: tuple[Page, Served, list[str]]) -> None:
    page, served, _ = open_
    page.goto(f"{served.base}/s/ses_run")
    runs = page.locator(".body .runs")
    expect(runs.locator("code")).to_contain_text(SHOWN)
    assert runs.locator("img").count() == 0
    count = runs.locator("[data-since]")
    expect(count).to_contain_text("m ")
    before = count.inner_text()
    expect(count).not_to_have_text(before)
    page.goto(f"{served.base}/s/ses_run?at=2")
    expect(page.locator(".body .runs code")).to_contain_text(SHOWN)
    page.goto(f"{served.base}/s/ses_run?at=1")
    expect(page.locator(".talk")).to_be_visible()
    expect(page.locator(".body .runs")).to_have_count(0)


def test_work_shows_what_runs_and_what_was_said_before_an_ask(open_: tuple[Page, Served, list[str]]) -> None:
    page, served, _ = open_
    page.goto(f"{served.base}/work")
    expect(page.locator(".card .runs code")).to_contain_text(SHOWN)
    ask = page.locator(".card.waits")
    expect(ask.locator("header .link")).to_contain_text(SHOWN)
    expect(ask.locator("pre")).to_contain_text("so I push.")
    expect(ask.locator("pre")).not_to_contain_text("Another one.")
    expect(ask.locator("pre")).not_to_contain_text("It came later.")
    assert page.locator("#main img").count() == 0


def test_an_answer_says_at_once_what_it_waits_for(open_: tuple[Page, Served, list[str]]) -> None:
    page, served, _ = open_
    held: list[Route] = []
    page.route("**/api/do/answer", lambda route: held.append(route))
    page.goto(f"{served.base}/work")
    ask = page.locator(".card.waits")
    ask.get_by_role("button", name="Reject").click()
    expect(ask).to_contain_text("Rejected; waits for OpenCode, which is not open")
    for button in ask.get_by_role("button").all():
        expect(button).to_be_disabled()
    held[0].fulfill(status=409, json={"code": "needs-person", "error": "only a person may `answer` <b>"})
    expect(page.locator("#main .note code")).to_have_text("answer")
    expect(ask.get_by_role("button", name="Reject")).to_be_enabled()
    expect(ask).not_to_contain_text("Rejected")
    page.unroute("**/api/do/answer")


def test_an_error_in_a_child_session_is_shown_in_the_conversation(open_: tuple[Page, Served, list[str]]) -> None:
    page, served, _ = open_
    page.goto(f"{served.base}/s/ses_top")
    failed = page.locator(".talk details .call .bad").first
    expect(failed).to_be_hidden()
    page.locator(".head .link.bad").click()
    expect(failed).to_be_in_viewport()
    expect(page.locator(".detail")).to_contain_text("no such file")


def test_long_output_is_a_fold_that_news_leave_open(browser: Browser, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    aside(record, home, happened())
    with looking(browser, home) as (page, served):
        page.goto(f"{served.base}/s/ses_long")
        output, diff = page.locator(".call pre.output"), page.locator(".call pre.diff")
        expect(output).to_contain_text("… 140 more lines")
        expect(output).not_to_contain_text("tset 100")
        output.get_by_role("button", name="140 more lines").click()
        expect(output.get_by_text("tset 100")).to_have_class("a1")
        expect(output).to_contain_text("$ count")
        expect(page.get_by_role("button", name="140 more lines")).to_have_count(0)
        fold = diff.get_by_role("button", name="21 more lines")
        fold.focus()
        page.keyboard.press("Enter")
        expect(diff.locator(".add")).to_have_count(60)
        assert page.locator("#main img").count() == 0
        assert "event=" not in page.url
        about = {"stream_id": "ses_long", "actor": "build", "source": {"agent": "build", "adapter": "opencode"}}
        said = {"session": "ses_long", "kind": "text", "text": "Counted.", "turn": "l", "message": "b"}
        new = {**about, "ts": int(time.time() * 1000), "type": "execution.output", "payload": said}
        aside(record, home, [seeded_identity(9).stamp(new)])
        expect(page.locator(".talk .said")).to_contain_text("Counted.")
        expect(output).to_contain_text("tset 100")
        expect(diff.locator(".add")).to_have_count(60)


def test_files_of_background_work_are_with_those_of_its_session(open_: tuple[Page, Served, list[str]]) -> None:
    page, served, _ = open_
    page.goto(f"{served.base}/s/ses_top/files")
    expect(page.locator(".files .add")).to_have_text("+made in a copy")
    expect(page.locator(".files")).to_contain_text("1 file in a private copy; not applied")
    page.goto(f"{served.base}/s/ses_top/files?at=3")
    expect(page.locator(".files, .empty")).not_to_contain_text("private copy")


@pytest.mark.parametrize("width", [1024, 390])
def test_a_long_word_makes_no_page_wider_than_the_screen(open_: tuple[Page, Served, list[str]], width: int) -> None:
    page, served, ids = open_
    page.set_viewport_size({"width": width, "height": 800})
    wide = ["/", "/?q=xxx", "/s/ses_wide", "/s/ses_wide/files", "/s/ses_wide/timeline"]
    for path in ("/work", "/costs", "/s/ses_run", "/s/ses_ask", *wide, *(f"/e/{each}" for each in (*ids[:6], ids[20]))):
        page.goto(served.base + path)
        page.wait_for_selector(".page, .session")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
    page.goto(f"{served.base}/work")
    width_of = "() => [...document.querySelectorAll('.card header .title')].at(-1)?.clientWidth ?? 0"
    wait_for(lambda: page.evaluate(width_of) >= 240, "a title that can be read, also after news")
