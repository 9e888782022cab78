"""Texts that readers show: odd ones, paths of the author, and the lines of agents, OpenCode's own too."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from bridge.opencode.redact import MAX_STRING, Redactor
from sidecar.background.intents.lifecycle import INTENT
from sidecar.background.intents.state import Intent
from sidecar.background.intents.texts import notice_text
from sidecar.background.messages.message import MESSAGE
from sidecar.read.host_agents import host_agents
from sidecar.read.redacted import Redaction
from sidecar.read.rendering.describe import KINDS, Line, describe, is_news
from sidecar.read.rendering.detail import detail
from sidecar.read.wording import visible
from streams.lineage import CREATED
from streams.store import Record
from tests.bridge.opencode.playing2 import play2
from tests.sidecar.read.conversations import announced_late, happened, sessions_of, written
from tests.sidecar.read.story.playing import catalog_of
from tests.streams.builders import event


def redacted(text: str, *directories: str, home: str = "/home/ada") -> str:
    redaction = Redaction(home)
    for directory in directories:
        redaction.record(Record(happened(CREATED, directory=directory), 0, 0, ""))
    record = redaction.record(Record(happened("execution.output", text={"a": [text]}), 1, 1, "the hash"))
    assert record.hash == "the hash"
    return str(record.event.payload["text"]["a"][0])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/ada/shop/src/a.py", "/project/src/a.py"),
        ("In /home/ada/shop.", "In /project."),
        ("/home/ada/shop-old/a and /home/ada/shop.bak", "~/shop-old/a and ~/shop.bak"),
        ("/home/ada/copy/a", "/project2/a"),
        ("/home/ada/shop/inner/a", "/project3/a"),
        ("file:///home/bob/x", "file://~/x"),
        ('"/Users/eve/x","/home/bob"', '"~/x","~"'),
        (r"C:\Users\eve\x", r"~\x"),
        ("/usr/lib and a/b", "/usr/lib and a/b"),
        ("ada wrote it", "ada wrote it"),
    ],
)
def test_directories_of_projects_and_homes(text: str, expected: str) -> None:
    assert redacted(text, "/home/ada/shop", "/home/ada/copy/", "/home/ada/shop/inner") == expected


def test_a_home_elsewhere_and_no_directory() -> None:
    assert redacted("/root/a /rooted/a", home="/root") == "~/a /rooted/a"
    assert redacted("/a/b", "/", "", home="/") == "/a/b"


SPELLED = ("می\u200cخواهم", "क्\u200dष", "\U0001f468\u200d\U0001f4bb")


@pytest.mark.parametrize("form", ["text", "markdown", "html"])
def test_joiners_stay_where_text_is_spelled_with_them(form: str) -> None:
    parts = [{"type": "text", "text": " ".join(SPELLED)}]
    events = [
        happened("human.input", message="m", parts=parts, actor="user"),
        happened("turn.started", message="m"),
        happened("execution.output", kind="text", text=" ".join(SPELLED), turn="m", message="a"),
    ]
    shown = written(sessions_of(events), form)
    for each in SPELLED:
        assert shown.count(each) >= 2


def test_joiners_that_spell_stay_where_a_person_is_asked_and_all_others_are_seen() -> None:
    assert visible(" ".join(SPELLED)) == " ".join(SPELLED)
    hidden = ("rm\u200d x", "\u200cls", "می\u200c\u200cx", "می\u200d", "a\u202eb", "\U0001f468\u200dx")
    assert not any("\u200c" in visible(each) or "\u200d" in visible(each) for each in hidden)
    assert all("<U+20" in visible(each) for each in hidden)


FORMS = ("text", "markdown", "html")
LONG = Redactor().clean({"text": "word " * (MAX_STRING // 5 + 1)})["text"]


@pytest.mark.parametrize("form", ["text", "markdown", "html"])
def test_a_text_that_was_too_long_to_keep_is_announced_where_it_stands(form: str) -> None:
    turn = {"turn": "m", "message": "a"}
    events = [
        happened("human.input", message="m", parts=[{"type": "text", "text": LONG}], actor="user"),
        happened("turn.started", message="m"),
        happened(
            "execution.step",
            kind="tool",
            tool="bash",
            call="c",
            status="completed",
            output=LONG,
            input={"command": "x"},
            **turn,
        ),
        happened("execution.output", kind="text", text=LONG, **turn),
    ]
    shown = written(sessions_of(events), form)
    assert shown.count("8.0 MiB") >= 3 and shown.count("word word") >= 3


@pytest.mark.parametrize(
    ("tool", "given"),
    [("write", {"filePath": "a.txt", "content": LONG}), ("bash", {"command": LONG}), ("odd", {"odd": [LONG]})],
)
def test_an_input_that_was_too_long_to_keep_is_announced_by_read_log_and_show(tool: str, given: dict[str, Any]) -> None:
    turn = {"turn": "m", "message": "a"}
    step = happened("execution.step", kind="tool", tool=tool, call="c", status="completed", input=given, **turn)
    shown = [written(sessions_of([happened("turn.started", message="m"), step]), form) for form in FORMS]
    found = detail(step)
    shown += ["".join(part.text for part in found.parts) + json.dumps(found.rest), describe(step).text]
    for each in shown:
        assert "8.0 MiB" in each and "$sha256" not in each


RESULT = {"result": "There are **42** lines.\n\n- all counted"}
WRAPPED = [
    notice_text(Intent("int_1", "do it", "count lines", "ses_1", "/p", 0), "completed", RESULT),
    '<task id="ses_1" state="completed">\n<task_result>\nThere are **42** lines.\n</task_result>\n</task>',
    '<subagent sessionID="ses_1" state="completed" description="count lines">\nThere are **42** lines.\n</subagent>',
]


@pytest.mark.parametrize("text", WRAPPED)
def test_a_result_is_shown_without_the_tags_that_the_model_gets(text: str) -> None:
    mark = {"durable_stream": {"key": "ntc_1"}}
    given = happened("agent.input", message="m", parts=[{"type": "text", "text": text, "metadata": mark}])
    step = happened("execution.step", kind="tool", tool="task", status="completed", output=text, turn="m")
    shown = [written(sessions_of([given]), form) for form in FORMS] + [describe(given).text]
    shown += [part.text for each in (given, step) for part in detail(each).parts]
    for each in shown:
        assert "42" in each and not re.search(r"</?(background|task|subagent)|It said this", each)
    assert ">" not in describe(given).text and "completed" in describe(given).text
    typed = happened("human.input", message="m", parts=[{"type": "text", "text": f"see\n{text}"}])
    assert text.split()[0] in describe(typed).text, "what a person typed around it is theirs"


def test_every_event_of_a_life_cycle_has_a_line() -> None:
    events = {event for table in (INTENT, MESSAGE) for row in table.values() for event in row}
    assert sorted(events - set(KINDS)) == []


def test_payloads_of_any_shape_are_told() -> None:
    odd = {"intent": ["x"], "reason": {"a": 1}, "title": None, "attempt": "many", "error_code": 5, "type": [{}]}
    for type_ in KINDS:
        assert describe(event(type_=type_, payload=odd)).label
    payload = {"kind": "http.post", "attempt": 3, "error": "timeout\x1b[2J"}
    told = describe(event(type_="effect.failed", payload=payload))
    assert told == Line("failed", "http.post · attempt 3 · timeout", "bad")


def test_bookkeeping_is_no_news() -> None:
    def news(stream: str, type_: str, **payload: object) -> bool:
        return is_news(event(stream=stream, type_=type_, payload=payload))

    assert news("ses_1", "execution.step") and news("agent/intents", "intent.failed")
    assert not news("agent/intents", "agent.received") and not news("agent/x/effects", "effect.started")
    assert news("agent/messages", "message.queued", kind="permission")
    assert not news("agent/messages", "message.queued", kind="alert")


def agents_of(name: str) -> list[dict[str, Any]]:
    return host_agents(catalog_of(play2(name).log.events.values()))


def test_an_agent_has_the_outcome_of_its_own_turn_and_its_parent() -> None:
    catalog = catalog_of(play2("background").log.events.values())
    rows = host_agents(catalog)
    assert [(row["state"], row["title"], row["turns"]) for row in rows] == [("completed", "bg", 1), ("failed", "bg", 1)]
    assert {row["parent"] for row in rows} == {root.id for root in catalog.roots()}


def test_an_agent_that_became_known_late_is_one_too() -> None:
    for name in ("background", "subagents"):
        late = announced_late(list(play2(name).log.events.values()))
        assert host_agents(catalog_of(late)) == agents_of(name)


def test_a_child_in_the_foreground_is_none() -> None:
    for name in ("subagent", "subagents", "tools"):
        assert agents_of(name) == []
