"""One line for each kind of event, and one event whole: nothing is lost or said twice, whatever the payload holds."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from bridge.opencode.capture.table import RULES
from bridge.opencode.capture.tokens import add_tokens
from bridge.opencode.capture.translate import Translator
from sidecar.read.rendering.describe import Line, describe, short_type
from sidecar.read.rendering.detail import Detail, detail
from sidecar.read.rendering.markup import inside
from sidecar.read.sums import add_cost
from sidecar.read.wording import ago, amount, bytes_text, iso_time, lasted, local_time, money, one_line, printable
from streams.identity import seeded_identity
from tests.sidecar.cli.helpers import RECORDINGS, events_of
from tests.streams.builders import event


def line(type_: str, **payload: Any) -> Line:
    return describe(event(type_=type_, payload=payload))


@pytest.mark.parametrize(
    ("type_", "payload", "says"),
    [
        ("human.input", {"parts": [{"type": "text", "text": "fix\nit"}, {"type": "file", "filename": "a.py"}]},
         "input: fix it [a.py]"),
        ("human.input", {"parts": [{"type": "text", "text": "x", "synthetic": True}]}, "input: (no text of its own)"),
        ("agent.input", {"parts": [{"type": "text", "text": "Done: int_1", "synthetic": True,
                                    "metadata": {"durable_stream": {"key": "ntc_1"}}}]}, "prompt: Done: int_1"),
        ("agent.input", {"parts": [{"type": "text", "text": "x", "synthetic": True, "metadata": 5}]},
         "prompt: (no text of its own)"),
        ("human.input", {"shell": "echo x;\n ls", "message": "m"}, "input: !echo x; ls"),
        ("human.input", {"shell": 7}, "input: (no text of its own)"),
        ("turn.started", {"trigger": "shell"}, "turn: shell"),
        ("opencode.message.removed", {"prompt": "fix it", "properties": {"messageID": "m"}}, "undone: fix it"),
        ("opencode.message.removed", {"prompt": ""}, "undone: a prompt"),
        ("opencode.message.removed", {"properties": {"messageID": "m"}}, "undone: an answer"),
        ("opencode.command.executed", {"properties": {"name": "init", "arguments": "SAY:x"}}, "command: /init SAY:x"),
        ("opencode.command.executed", {"properties": {"name": "init", "arguments": ""}}, "command: /init"),
        ("opencode.command.executed", {"properties": 5}, "command: /"),
        ("turn.started", {"model": {"provider": "p", "model": "m"}, "trigger": "prompt"}, "turn: p/m"),
        ("turn.started", {"trigger": "compaction"}, "turn: compaction"),
        ("turn.ended", {"outcome": "completed", "steps": 1, "cost": 0.0123, "tokens": {"input": 1500, "output": 7}},
         "turn end: completed · 1 step · 1.5k in, 7 out, $0.01"),
        ("execution.step", {"kind": "inference", "finish": "stop",
                            "tokens": {"input": 7, "output": 5, "cache": {"read": 92000, "write": 993}}},
         "model: stop · 93.0k in (92.0k cached), 5 out"),
        ("turn.ended", {"outcome": "completed", "tokens": {"input": 7, "cache_read": 93000, "cache_write": 0}},
         "turn end: completed · 93.0k in (93.0k cached)"),
        ("execution.step", {"kind": "tool", "tool": "read", "input": {"filePath": "/b"},
                            "executed_input": {"filePath": "/a"}}, "read: /a"),
        ("turn.ended", {"outcome": "failed", "error": "APIError", "steps": 0}, "turn end: failed (APIError)"),
        ("execution.step", {"kind": "tool", "tool": "bash", "title": "npm test", "duration_ms": 65000},
         "bash: npm test · 1m 05s"),
        ("execution.step", {"kind": "tool", "tool": "bash", "input": {"command": "false"}, "metadata": {"exit": 1}},
         "bash: false → exit 1"),
        ("execution.step", {"kind": "tool", "tool": "read", "status": "error", "error": "not found"},
         "read: failed: not found"),
        ("execution.step", {"kind": "tool", "tool": "bash", "title": "x", "metadata": {"exit": 1}, "duration_ms": 4200},
         "bash: x → exit 1 · 4.2s"),
        ("execution.step", {"kind": "inference", "finish": "stop"}, "model: stop"),
        ("execution.output", {"kind": "reasoning", "text": "hm"}, "thinks: hm"),
        ("agent.spawned", {"agent": "general", "description": "look"}, "spawns: general: look"),
        ("agent.error", {"name": "APIError", "status": 429, "reason": "wait"}, "error: APIError HTTP 429: wait"),
        ("workflow.checkpoint", {"kind": "permission", "state": "asked", "permission": "bash", "patterns": ["rm *"]},
         "asks: bash rm *"),
        ("workflow.checkpoint", {"kind": "permission", "state": "asked", "permission": "bash",
                                 "patterns": ["echo x", "ls"], "metadata": {"command": "echo x; ls"}},
         "asks: bash echo x; ls"),
        ("workflow.checkpoint", {"kind": "permission", "state": "asked", "permission": "edit", "patterns": ["a", "b"]},
         "asks: edit a ; b"),
        ("workflow.checkpoint", {"kind": "question", "state": "asked", "questions": [{"question": "Which?"}]},
         "asks: Which?"),
        ("workflow.checkpoint", {"kind": "question", "state": "replied", "answers": [["Blue", "Red"]]},
         "answer: Blue, Red"),
        ("workflow.checkpoint", {"kind": "permission", "state": "replied", "reply": "reject"}, "answer: rejected"),
        ("capture.gap", {"lost": 3, "reason": "unheard_of"}, "gap: 3 hooks lost: unheard of"),
        ("lineage.linked", {"parent": "ses_1"}, "linked: to ses_1"),
        ("opencode.todo.updated", {"properties": {"title": "x"}}, "todo.updated: x"),
        ("execution.output", {"$sha256": "ab"}, "output: (payload forgotten)"),
    ],
)  # fmt: skip
def test_lines(type_: str, payload: dict[str, Any], says: str) -> None:
    assert str(line(type_, **payload)) == says


def test_a_step_tells_working_from_waiting() -> None:
    payload = {"kind": "tool", "tool": "bash", "title": "npm test", "duration_ms": 4200}
    step = event(type_="execution.step", payload=payload)
    assert str(describe(step, waited_ms=3100)) == "bash: npm test · 4.2s (waited 3.1s for you)"
    assert str(describe(step)) == "bash: npm test · 4.2s"


TYPES = sorted({made for rule in RULES for made in rule.makes})
ODD: list[Any] = [None, 7, "text", [], [None], {}, {"a": [1]}, True]


@pytest.mark.parametrize("type_", TYPES)
def test_no_shape_of_a_payload_is_too_odd(type_: str) -> None:
    names = (
        "parts", "kind", "state", "questions", "patterns", "answers", "tokens", "cost", "model", "metadata", "lost",
        "input", "title", "steps", "status", "duration_ms", "text", "properties", "error", "output", "started_ms",
        "reason", "message", "reply", "tool",
    )  # fmt: skip
    for name, value in product(names, ODD):
        for kind in ({"kind": "tool"}, {"kind": "inference"}, {"state": "asked"}, {"state": "replied"}):
            detail(event(type_=type_, payload={**kind, name: value}))
            said = line(type_, **{**kind, name: value})
            assert said.label and "\n" not in str(said)


@pytest.mark.parametrize("name", sorted(path.stem for path in RECORDINGS.glob("*.jsonl")))
def test_every_recorded_event_says_something(name: str) -> None:
    for recorded in events_of(name, Translator(seeded_identity(1))):
        said = str(describe(recorded))
        assert said and said.isprintable()


def test_a_payload_cannot_drive_the_terminal() -> None:
    evil = "a\x1b[31mred\x1b]0;title\x07\r\x9b2Jb\u202e\tc\x00d"
    assert one_line(evil) == "ared 2Jb cd"
    assert printable("two\nlines\x1b[2J") == "two\nlines"
    assert "\x1b" not in str(line("execution.output", kind="text", text=evil))


@pytest.mark.parametrize("absurd", [1e308, -1, -1e12, 10**300, 1e300, float("inf"), float("nan")])
def test_a_number_that_cannot_be_true_is_a_question_mark(absurd: float) -> None:
    assert amount(absurd) == money(absurd) == lasted(absurd) == "?"
    payload = {"kind": "inference", "tokens": {"input": absurd, "output": 3}, "cost": absurd}
    total: dict[str, float] = {}
    add_tokens(total, payload["tokens"])
    assert (total, add_cost(0.5, payload)) == ({"output": 3}, 0.5)
    assert line("execution.step", **payload).text == "? in, 3 out, ?"
    tokens = dict(detail(event(type_="execution.step", payload=payload)).facts)["tokens"]
    assert tokens == "? input, 3 output"


def test_a_clock_that_was_set_is_told() -> None:
    assert lasted(640_870 * 3_600_000) == "?"
    assert [ago(x) for x in (-5, -300_000, -86_400_000 * 12)] == ["just now", "5m ahead", "12d ahead"]


def test_short_forms() -> None:
    assert short_type("lifecycle.session.created") == "session.created"
    assert [money(x) for x in (0, 0.00123, 0.005, 12.3)] == ["-", "<$0.01", "$0.01", "$12.30"]
    assert [amount(x) for x in (987, 12_345, 4_500_000)] == ["987", "12.3k", "4.5M"]
    assert [bytes_text(x) for x in (0, 12_600, 2**32)] == ["0 B", "12.3 KiB", "4.0 GiB"]
    assert [ago(x) for x in (5, 300_000, 7_200_000, 86_400_000 * 12)] == ["just now", "5m ago", "2h ago", "12d ago"]
    assert iso_time(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"
    assert iso_time(2**53) == local_time(2**53) == f"{2**53}ms"


RETOLD = ("preview", "display", "filediff", "diff", "oldString", "newString", "parentSessionId")
"""Fields whose content the output or the diff shows, too."""


def texts(value: Any, name: str = "") -> Iterator[str]:
    """The texts in a payload, but for those of ``RETOLD``."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in RETOLD:
                yield from texts(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner, name)
    elif isinstance(value, str) and value.strip():
        yield value.strip()


def told(found: Detail) -> list[str]:
    """Each text that is shown."""
    facts = [value for _, value in (*found.facts, *found.ids)]
    return [part.text.strip() for part in found.parts] + facts + list(texts(found.rest))


@pytest.mark.parametrize("name", sorted(path.stem for path in RECORDINGS.glob("*.jsonl")))
def test_every_recorded_event_is_told_whole_and_once(name: str) -> None:
    for recorded in events_of(name, Translator(seeded_identity(1))):
        shown = told(detail(recorded))
        whole = "\n".join(shown)
        for text in texts(recorded.payload):
            if len(text) >= 12 and not text.startswith(("msg_", "prt_")):
                assert (inside(text) or text) in whole, (recorded.type, text)
        long = [text for text in shown if len(text) >= 20]
        assert len(long) == len(set(long)), (recorded.type, long)


def test_a_forgotten_payload_is_told_as_such() -> None:
    found = detail(event(type_="human.input", payload={"$sha256": "ab"}))
    assert [part.kind for part in found.parts] == ["aside"]
