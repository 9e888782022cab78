"""Every recording as a conversation: nothing said is missing, whatever the shape of a payload."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

from sidecar.read.ask_text import checkpoint_id
from sidecar.read.changes.approvals import Ask, answer_text, approval_of
from sidecar.read.rendering.describe import describe
from sidecar.read.story.belonging import MOST_DEPTH
from sidecar.read.transcript.model import Call, Notice, Prompt, Reading, Said, Session, Turn
from sidecar.read.transcript.wording import asked_text, call_facts, turn_end
from streams.event import StreamEvent
from tests.sidecar.read.conversations import (
    DEMO,
    NAMES,
    announced_late,
    every_recording,
    happened,
    recorded,
    sessions_of,
    written,
)
from tests.sidecar.read.story.playing import records_of

WITH = checkpoint_id("ses_root", "q")

FORMS = ("text", "markdown", "html", "json")


def items(turns: list[Turn]) -> list[Any]:
    found: list[Any] = []
    for turn in turns:
        for item in turn.items:
            found.append(item)
            if isinstance(item, Call):
                found += item.asks + (items(item.child.turns) if item.child is not None else [])
    return found


def everything(roots: list[Session]) -> list[Any]:
    return items([turn for root in roots for turn in root.turns])


def unquoted(text: str) -> str:
    """A text without the marks of quotes, wherever they came from, and without what makes HTML a text."""
    return "\n".join(re.sub(r"^(?:> ?)+", "", line).rstrip() for line in text.replace("\\<", "<").split("\n"))


@pytest.mark.parametrize("name", [*NAMES, DEMO], ids=lambda name: name.rpartition("/")[2])
def test_every_word_of_a_recording_is_in_its_transcript(name: str) -> None:
    events = recorded(name)
    roots = sessions_of(events)
    markdown = written(roots, "markdown")
    bare = unquoted(markdown)
    said = [e.payload["text"] for e in events if e.type == "execution.output"]
    asked = [
        part["text"]
        for event in events
        if event.type == "human.input"
        for part in event.payload.get("parts", ())
        if part.get("type") == "text" and not part.get("synthetic")
    ]
    ran = [f"!{e.payload['shell']}" for e in events if e.type == "human.input" and "shell" in e.payload]
    for text in said + asked + ran:
        assert unquoted(text.strip()) in bare, text
    found = everything(roots)
    calls = [e for e in events if e.type == "execution.step" and e.payload["kind"] == "tool"]
    assert sum(isinstance(item, Call) and item.status != "unknown" for item in found) == len(calls)
    assert sum(isinstance(item, Ask) for item in found) == sum(e.payload.get("state") == "asked" for e in events)
    for form in FORMS:
        for reading in (Reading(), Reading(full=True, children=True)):
            assert written(roots, form, reading)


@pytest.mark.parametrize("form", FORMS)
def test_a_message_of_the_sidecar_is_shown_above_its_answer(form: str) -> None:
    wake = {"type": "text", "text": "The work int_1 is done.", "synthetic": True}
    other = wake | {"text": "Continue if you have next steps."}
    events = [
        happened("agent.input", message="m", parts=[wake | {"metadata": {"durable_stream": {"key": "ntc_1"}}}, other]),
        happened("turn.started", message="m"),
        happened("execution.output", turn="m", text="I read it."),
    ]
    told = written(sessions_of(events), form)
    assert told.index("The work int_1 is done.") < told.index("I read it.") and "next steps" not in told


def test_the_demo_is_told_with_its_children_below_their_calls() -> None:
    (root,) = sessions_of(recorded(DEMO))
    first, second = root.turns
    assert [type(item).__name__ for item in first.items] == ["Prompt", "Call", "Said", *["Call"] * 4, "Said"]
    bash, one, other, edit = [item for item in first.items if isinstance(item, Call)][:4]
    assert (bash.tool, bash.exit, call_facts(bash)) == ("bash", 1, ["exit 1"])
    assert [call.child.agent for call in (one, other) if call.child is not None] == ["general", "general"]
    assert [len(call.child.turns) for call in (one, other) if call.child is not None] == [1, 1]
    (diff,) = edit.diffs
    assert (diff.file, diff.additions, diff.deletions, diff.how) == ("login.py", 1, 1, "edit")
    assert diff.patch.split("\n")[0].startswith("@@") and "+    return users.get(name) == password" in diff.patch
    assert turn_end(first).startswith("completed · 10 steps · ")
    (commit,) = [item for item in second.items if isinstance(item, Call)]
    (ask,) = commit.asks
    assert (ask.permission, ask.wanted, ask.reply, ask.by) == ("bash", [commit.input["command"]], "once", "user")
    assert answer_text(ask) == f"approved once by user after {ask.waited_ms}ms"


@pytest.mark.parametrize(
    ("name", "state", "told"),
    [
        ("permission_once", "replied", "approved once by user"),
        ("permission_always", "replied", "approved always by user"),
        ("permission_reject", "rejected", "rejected automatically"),
        ("permission_aborted", "over", "not answered"),
        ("permission_external_directory", "replied", "approved once by user"),
        ("question_replied", "replied", "Blue (by user"),
        ("question_rejected", "rejected", "rejected automatically"),
    ],
)
def test_an_answer_is_told_with_its_call(name: str, state: str, told: str) -> None:
    found = everything(sessions_of(recorded(name)))
    (ask,) = [item for item in found if isinstance(item, Ask)]
    assert ask.state == state and answer_text(ask).startswith(told)
    (call,) = [item for item in found if isinstance(item, Call) and item.asks]
    assert call.call == ask.call


@pytest.mark.parametrize(
    ("actor", "about", "state", "told"),
    [
        ("user", {"reply": "reject"}, "rejected", "rejected by user after 5ms"),
        ("process", {"reply": "once"}, "replied", "approved once by process after 5ms"),
        ("opencode", {"reply": "reject"}, "rejected", "rejected automatically after 5ms"),
        ("opencode", {"reply": "reject", "with": "q"}, "withdrawn", f"withdrawn: rejected with {WITH}"),
        ("opencode", {"reply": "always", "with": "q"}, "replied", f"approved always with {WITH} after 5ms"),
    ],
)
def test_every_view_tells_who_answered_as_the_answer_does(
    actor: str, about: dict[str, Any], state: str, told: str
) -> None:
    given: dict[str, Any] = {"kind": "permission", "request": "p", "call": "c", "turn": "m", "permission": "bash"}
    made = [
        happened("workflow.checkpoint", 1000, state="asked", **given),
        happened("workflow.checkpoint", 1005, actor, state="replied", **given, **about),
    ]
    (ask,) = everything(sessions_of(made))
    assert (ask.state, answer_text(ask)) == (state, told)
    approval = approval_of(*records_of(made))
    assert approval.text == told and approval.as_json()["with"] == (WITH if "with" in about else None)
    line = describe(made[1]).text
    assert (WITH in line) == ("with" in about) and line.startswith("withdrawn") == (state == "withdrawn")


def test_work_that_no_call_started_stands_after_the_turn_before_it() -> None:
    events = [
        happened("human.input", message="m", parts=[{"type": "text", "text": "first"}], actor="user"),
        happened("turn.started", message="m"),
        happened("turn.ended", message="m", outcome="completed"),
        happened("lifecycle.session.created", session="ses_spawned", parent="ses_root", lineage="child", title="apart"),
        happened("turn.started", session="ses_spawned", message="s"),
        happened("execution.output", session="ses_spawned", kind="text", text="worked", turn="s", message="a"),
        happened("turn.ended", session="ses_spawned", message="s", outcome="completed"),
        happened("human.input", message="n", parts=[{"type": "text", "text": "second"}], actor="user"),
        happened("turn.started", message="n"),
        happened("turn.ended", message="n", outcome="completed"),
    ]
    (root,) = sessions_of(events)
    below = [
        [item.child.session for item in turn.items if isinstance(item, Call) and item.child] for turn in root.turns
    ]
    assert below == [[], ["ses_spawned"], []]
    for form in ("text", "markdown", "html"):
        shown = written([root], form)
        body = shown[shown.rindex("first") :]
        assert body.index("completed") < body.index("worked") < body.index("second"), shown


def test_an_answer_to_an_unknown_ask_has_no_duration() -> None:
    (ask,) = everything(sessions_of([happened("workflow.checkpoint", 1000, "user", state="rejected", request="p")]))
    assert (ask.by, ask.waited_ms, answer_text(ask)) == ("user", None, "rejected by user")


def test_what_nobody_answered_waits_and_is_told_at_the_top() -> None:
    events = recorded("permission_once")
    until = next(number for number, event in enumerate(events) if event.payload.get("state") == "asked")
    roots = sessions_of(events[: until + 1])
    (ask,) = [item for item in everything(roots) if isinstance(item, Ask)]
    now = Reading(now_ms=ask.ts + 120_000)
    assert ask.state == "waiting" and ask.waited_ms is None
    for form in ("text", "markdown", "html"):
        shown = written(roots, form, now)
        assert shown.count("waiting for you, 2m") == 2 and asked_text(ask) in shown
    assert "still open" in written(roots, "text", now)


def test_the_ask_of_a_folded_child_is_not_hidden() -> None:
    events = recorded("permission_child")
    for form in ("text", "markdown"):
        assert "approved once by user" in written(sessions_of(events), form, Reading())
    until = next(number for number, event in enumerate(events) if event.payload.get("state") == "asked")
    assert written(sessions_of(events[: until + 1]), "text", Reading()).count("waiting for you") == 2


def test_a_page_shows_small_raster_images_and_names_every_other_file() -> None:
    def file(url: Any, mime: str = "image/png", **more: str) -> dict[str, Any]:
        return {"type": "file", "mime": mime, "url": url, **more}

    shown = ["data:image/png;base64,iVBORw0KGgo=", "data:image/webp;base64,UklGRg=="]
    cut = {"$sha256": "0" * 64, "bytes": 12_000_000, "beginning": "data:image/png;base64,iVBO"}
    refused = [
        "data:image/svg+xml;base64,PHN2Zz4=", "data:text/html;base64,PGI+", "https://example.org/a.png", cut,
        'data:image/png;base64,AA"onerror="x', "data:image/gif;base64," + "A" * 3_000_000, 7,
    ]  # fmt: skip
    parts = [file(shown[0], filename="screen.png"), *(file(url, filename="refused.png") for url in refused)]
    call = {"kind": "tool", "tool": "read", "status": "completed", "input": {"filePath": "b.webp"}, "turn": "m"}
    roots = sessions_of(
        [
            happened("human.input", message="m", parts=parts),
            happened("turn.started", message="m"),
            happened("execution.step", **call, attachments=[file(shown[1], "image/webp")]),
        ]
    )
    page = written(roots, "html")
    assert re.findall('<img src="([^"]*)"', page) == shown and page.count("refused.png") == len(refused)
    for form in ("html", "markdown", "text"):
        for words in ("screen.png, 8 B", "refused.png, 8.6 MiB", "refused.png, 2.1 MiB", "image/webp, 4 B"):
            assert words in written(roots, form).replace("\\", ""), (form, words)


def test_an_undone_prompt_and_a_command_are_named() -> None:
    events = recorded("revert")
    at = next(number for number, event in enumerate(events) if event.type == "opencode.session.reverted")
    again = StreamEvent.trusted({**events[at].fields(), "payload": {"session": events[at].payload["session"]}})
    for until, is_undone in ((events[: at + 1], True), ([*events[: at + 1], again], False)):
        told = everything(sessions_of(until))
        assert [item.undone for item in told if isinstance(item, Prompt)] == [False, is_undone], "at once"
    undone = everything(sessions_of(events))
    assert [item.undone for item in undone if isinstance(item, Prompt)] == [False, True, False]
    assert [item.text for item in undone if isinstance(item, Notice)] == ["SAY:b"]
    (prompt,) = [item for item in everything(sessions_of(recorded("command"))) if isinstance(item, Prompt)]
    assert prompt.command == "/init SAY:x"


def test_a_child_that_is_called_again_is_told_below_each_call() -> None:
    (root,) = sessions_of(recorded("task_resumed_child"))
    calls = [item for item in items(root.turns) if isinstance(item, Call)]
    answers = [
        [item.text for item in items(call.child.turns) if isinstance(item, Said)] for call in calls if call.child
    ]
    assert answers == [["first"], ["again"]]


def test_a_child_session_is_below_its_call_whenever_it_became_known() -> None:
    for name, events in every_recording():
        assert written(sessions_of(announced_late(events)), "markdown") == written(sessions_of(events), "markdown"), (
            name
        )


@pytest.mark.parametrize("name", ["task_child", "subagent"])
def test_what_a_child_session_answered_is_told_as_its_answer(name: str) -> None:
    (root,) = sessions_of(dict(every_recording())[name])
    html = written([root], "html", Reading())
    (call,) = [item for item in everything([root]) if isinstance(item, Call) and item.tool == "task"]
    own = sum(isinstance(item, Said) and item.kind == "answer" for turn in root.turns for item in turn.items)
    assert call.child is not None
    below = sum(isinstance(item, Said) for turn in call.child.turns for item in turn.items)
    assert html.count('<section class="said" id=') == own + below
    assert f'<section class="said result"><p class="agent">{call.child.agent} <span>answered</span></p>' in html


def test_what_was_forgotten_is_counted() -> None:
    digest = "0" * 64
    events = [happened("execution.output", number, **{"$sha256": digest}) for number in range(3)]
    (root,) = sessions_of([*events, happened("execution.output", 9, turn="m", text="later", kind="text")])
    assert root.id == "ses_root"
    for form in ("text", "markdown", "html"):
        assert "3 records (forgotten)" in written([root], form).replace("\\", "")


def test_sessions_that_hold_each_other_end() -> None:
    made = [happened("lifecycle.session.created", session=f"s{n}") for n in range(20)]
    made += [happened("agent.spawned", session=f"s{n}", child=f"s{n + 1}", call="c", turn="m") for n in range(19)]
    made += [happened("agent.spawned", session="s19", child="s0"), happened("agent.spawned", session="s5", child="s5")]
    made += [happened("lineage.linked", session="s0", parent="s7")]
    made += [happened("agent.spawned", session="s5", child="s5", turn=f"m{n}") for n in range(300)]
    made += [happened("execution.output", session="s5", turn=f"m{n}", text="t") for n in range(300)]
    roots = sessions_of(made)

    def depth(turns: list[Turn]) -> int:
        return 1 + max((depth(i.child.turns) for i in items(turns) if isinstance(i, Call) and i.child), default=0)

    assert roots and max(depth(root.turns) for root in roots) <= MOST_DEPTH
    for form in FORMS:
        assert written(roots, form)


@pytest.mark.parametrize("name", [DEMO, "permission_child", "question_replied", "revert", "write_edit", "command"])
def test_a_field_of_any_other_type_ends_nothing(name: str) -> None:
    chance = random.Random(name)
    events = recorded(name)
    for _ in range(25):
        roots = sessions_of([bent(event, chance) for event in events])
        for form in FORMS:
            written(roots, form)


def bent(event: StreamEvent, chance: random.Random) -> StreamEvent:
    """The event with some of its payload, at any depth, of another type or gone."""
    strange: list[Any] = [None, 7, True, "", "x" * 40, [], {}, [[1]], {"a": None}, -1, 1e300, 2**60, ["a", {}]]

    def bend(value: Any) -> Any:
        if chance.random() < 0.06:
            return chance.choice(strange)
        if isinstance(value, dict):
            return {key: bend(inner) for key, inner in value.items() if chance.random() > 0.02}
        return [bend(inner) for inner in value] if isinstance(value, list) else value

    payload = json.loads(json.dumps(event.payload))
    return StreamEvent.trusted({**event.fields(), "payload": {key: bend(value) for key, value in payload.items()}})
