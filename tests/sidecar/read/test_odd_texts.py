"""Readers show what is spelled with joiners, and say where a text was too long to keep."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from bridge.opencode.redact import MAX_STRING, Redactor
from sidecar.background.intents.state import Intent
from sidecar.background.intents.texts import told
from sidecar.read.telling.describe import describe
from sidecar.read.telling.detail import detail
from tests.sidecar.read.conversations import folded, happened, written

SPELLED = ("می\u200cخواهم", "क्\u200dष", "\U0001f468\u200d\U0001f4bb")


@pytest.mark.parametrize("form", ["text", "markdown", "html"])
def test_joiners_stay_where_text_is_spelled_with_them(form: str) -> None:
    parts = [{"type": "text", "text": " ".join(SPELLED)}]
    events = [
        happened("human.input", message="m", parts=parts, actor="user"),
        happened("turn.started", message="m"),
        happened("execution.output", kind="text", text=" ".join(SPELLED), turn="m", message="a"),
    ]
    shown = written(folded(events), form)
    for each in SPELLED:
        assert shown.count(each) >= 2


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
    shown = written(folded(events), form)
    assert shown.count("8.0 MiB") >= 3 and shown.count("word word") >= 3


@pytest.mark.parametrize(
    ("tool", "given"),
    [("write", {"filePath": "a.txt", "content": LONG}), ("bash", {"command": LONG}), ("odd", {"odd": [LONG]})],
)
def test_an_input_that_was_too_long_to_keep_is_announced_by_read_log_and_show(tool: str, given: dict[str, Any]) -> None:
    turn = {"turn": "m", "message": "a"}
    step = happened("execution.step", kind="tool", tool=tool, call="c", status="completed", input=given, **turn)
    shown = [written(folded([happened("turn.started", message="m"), step]), form) for form in FORMS]
    found = detail(step)
    shown += ["".join(part.text for part in found.parts) + json.dumps(found.rest), describe(step).text]
    for each in shown:
        assert "8.0 MiB" in each and "$sha256" not in each


RESULT = {"result": "There are **42** lines.\n\n- all counted"}
WRAPPED = [
    told(Intent("int_1", "do it", "count lines", "ses_1", "/p", 0), "completed", RESULT),
    '<task id="ses_1" state="completed">\n<task_result>\nThere are **42** lines.\n</task_result>\n</task>',
    '<subagent sessionID="ses_1" state="completed" description="count lines">\nThere are **42** lines.\n</subagent>',
]


@pytest.mark.parametrize("text", WRAPPED)
def test_a_result_is_shown_without_the_tags_that_the_model_gets(text: str) -> None:
    mark = {"durable_stream": {"key": "ntc_1"}}
    given = happened("agent.input", message="m", parts=[{"type": "text", "text": text, "metadata": mark}])
    step = happened("execution.step", kind="tool", tool="task", status="completed", output=text, turn="m")
    shown = [written(folded([given]), form) for form in FORMS] + [describe(given).text]
    shown += [part.text for each in (given, step) for part in detail(each).parts]
    for each in shown:
        assert "42" in each and not re.search(r"</?(background|task|subagent)|It said this", each)
    assert ">" not in describe(given).text and "completed" in describe(given).text
    typed = happened("human.input", message="m", parts=[{"type": "text", "text": f"see\n{text}"}])
    assert text.split()[0] in describe(typed).text, "what a person typed around it is theirs"
