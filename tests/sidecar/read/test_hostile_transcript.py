"""Text of agents and files cannot control a terminal or a browser, or pass for the transcript's own words."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from sidecar.read.transcript.html import markdown_html
from sidecar.read.transcript.markdown import code, contained, fenced
from sidecar.read.transcript.model import Reading
from streams.event import StreamEvent
from tests.sidecar.read.conversations import happened, sessions_of, written

EVIL = (
    "plain\x1b[31mred\x1b]0;title\x07\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\ \x9b2J \u202eright \u2066in\u2069 "
    "&#27;[2J &#x202e;flip &#x9b;x\r\nback\x08\x00 <script>alert(1)</script> <img src=x onerror=alert(1)>\n"
    "![pic](http://evil.example/p.png) ![data](data:text/html,x) [js](javascript:alert(1)) "
    '[ok](https://good.example/?a=1&b="2") [file](file:///etc/passwd) <http://auto.example> <javascript:alert(2)>\n\n'
    "<!-- swallowed\n\n```\nnever closed </pre></code></textarea></style>\n# user · 01:00:00\n"
    "| a | b |\n|---|---|\n| \x1b[1m | </td> |\n" + "> " * 300 + "deep"
)

TAGS = set(
    re.findall(
        r"\w+",
        "html head meta title style body h1 h2 h3 h4 h5 h6 p section header time span b code pre details summary div "
        "blockquote a br ol ul li em strong s hr table thead tbody tr th td",
    )
)


class Page(HTMLParser):
    """What a browser would find in a page."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.comments: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)


def conversation() -> list[StreamEvent]:
    """Every text of a conversation is hostile."""
    turn: dict[str, Any] = {"turn": "m", "message": "a"}
    tool = {**turn, "kind": "tool", "status": "completed", "output": EVIL, "title": EVIL}
    parts = [{"type": "text", "text": EVIL}, {"type": "file", "filename": EVIL}]
    ask = {"kind": "permission", "request": "r", "call": "c1", "turn": "m", "permission": EVIL, "patterns": [EVIL]}
    question = {
        "kind": "question",
        "request": "q",
        "turn": "m",
        "questions": [{"question": EVIL, "options": [{"label": EVIL}]}],
    }
    return [
        happened("lifecycle.session.created", title=EVIL, directory=f"/{EVIL}", agent=EVIL),
        happened("human.input", actor=EVIL, message="m", parts=parts),
        happened("turn.started", message="m", agent=EVIL, model={"provider": EVIL, "model": EVIL}, trigger=EVIL),
        happened("workflow.checkpoint", state="asked", always=[EVIL], **ask),
        happened("workflow.checkpoint", actor=EVIL, state="replied", reply="always", message=EVIL, **ask),
        happened("workflow.checkpoint", state="asked", **question),
        happened("workflow.checkpoint", actor=EVIL, state="replied", answers=[[EVIL]], **question),
        happened("execution.step", tool="bash", call="c1", input={"command": EVIL}, **tool),
        happened("execution.step", tool=EVIL, call="c2", input={EVIL: EVIL, "b": 1}, **tool),
        happened("execution.step", tool="edit", call="c3", input={"filePath": EVIL, "newString": EVIL}, **tool),
        happened("execution.step", tool="bash", call="c4", **{**tool, "status": "error", "error": EVIL}),
        happened("execution.step", tool="todowrite", call="c5", input={"todos": [{"content": EVIL}]}, **tool),
        happened("agent.spawned", child="ses_kid", call="c6", agent=EVIL, description=EVIL, **turn),
        happened("execution.output", session="ses_kid", turn="k", kind="text", text=EVIL),
        happened("execution.step", tool="task", call="c6", child="ses_kid", input={"subagent_type": EVIL}, **tool),
        happened("execution.output", kind="reasoning", text=EVIL, **turn),
        happened("execution.output", kind="text", text=EVIL, **turn),
        happened("agent.error", name=EVIL, reason=EVIL, turn="m"),
        happened(f"opencode.{'x' * 20}", properties={"text": EVIL}),
        happened("turn.ended", message="m", outcome=EVIL, error=EVIL, title=EVIL),
        happened("lifecycle.session.ended", reason=EVIL),
    ]


READINGS = [Reading(notes=(EVIL,)), Reading(full=True, children=True, notes=(EVIL,))]


@pytest.mark.parametrize("reading", READINGS, ids=["short", "full"])
@pytest.mark.parametrize("form", ["text", "markdown", "html", "json"])
def test_no_control_or_format_character_is_written(form: str, reading: Reading) -> None:
    shown = written(sessions_of(conversation()), form, reading)
    assert [c for c in shown if not c.isprintable() and c != "\n"] == []
    assert "right" in shown and "good.example" in shown


@pytest.mark.parametrize("reading", READINGS, ids=["short", "full"])
def test_a_page_holds_no_script_no_foreign_element_and_no_foreign_address(reading: Reading) -> None:
    page = Page()
    page.feed(written(sessions_of(conversation()), "html", reading))
    page.close()
    assert set(page.tags) <= TAGS and not page.comments
    names = {name for name, _ in page.attributes}
    assert names <= {
        "lang",
        "charset",
        "name",
        "content",
        "http-equiv",
        "class",
        "id",
        "open",
        "href",
        "rel",
        "start",
        "target",
        "dir",
        "tabindex",
    }
    links = {value for name, value in page.attributes if name == "href"}
    assert links == {"https://good.example/?a=1&b=%222%22", "http://auto.example"}
    assert {value for name, value in page.attributes if name == "rel"} == {"noopener noreferrer nofollow"}
    assert page.tags.count("html") == page.tags.count("style") == page.tags.count("title") == 1
    assert {value for name, value in page.attributes if name == "target"} == {"_blank"}


@pytest.mark.parametrize(
    "url", ["javascript:alert(1)", "JaVaScRiPt:x", "data:text/html,x", "//evil", "vbscript:x", "x:y"]
)
def test_only_web_addresses_become_links(url: str) -> None:
    assert "<a" not in markdown_html(f"[x]({url}) <{url}>")
    assert "<img" not in markdown_html(f"![x]({url}) ![y](https://a.example/b.png)")


def test_what_is_quoted_or_fenced_cannot_get_out() -> None:
    assert fenced("a\n````\nb")[0] == "`````" and code("``") == "``` `` ```"
    assert contained("```py\nx")[-1] == "```" and contained("~~~~\n```\n~~~")[-1] == "~~~~"
    assert contained("```\nx\n```") == ["```", "x", "```"]
    for opened in ("<!-- x", "  <script>", "<PRE>", "<?php", "<![CDATA[", "<style>"):
        assert contained(opened)[0].lstrip().startswith("\\<")
    assert contained("a <b> c\n```\n<!-- kept\n```")[2] == "<!-- kept"


def test_prompts_in_markdown_cannot_pass_for_turns() -> None:
    markdown = written(sessions_of(conversation()), "markdown", Reading())
    headings = re.findall(r"^#.*", markdown, re.M)
    inside = [line for line in contained(EVIL) if line.startswith("#")]
    assert len([line for line in headings if line not in inside]) == 2  # the title, and the prompt


def test_a_long_answer_on_a_terminal_is_whole() -> None:
    words = [f"word{number}" for number in range(3000)]
    text = (
        " ".join(words)
        + "\n\nVec<String> and <T> stay, [name](https://good.example/page)\n\n```py\n"
        + "x" * 500
        + "\n```"
    )
    events = [happened("execution.output", turn="m", kind="text", text=text)]
    shown = written(sessions_of(events), "text", Reading())
    assert [word for word in words if word not in shown] == []
    assert "Vec<String> and <T> stay" in shown and "https://good.example/page" in shown
    assert "".join(shown.split()).count("x" * 500) == 1
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("form", ["text", "html"])
@pytest.mark.parametrize(
    "text",
    [
        "> " * 500 + "lost",
        "".join(f"{'  ' * depth}- word{depth}\n" for depth in range(60)) + "lost",
        "|a" * 300 + "|\n" + "|-" * 300 + "|\n" + "|lost" * 300 + "|",
        "| path | why |\n|---|---|\n| " + "x" * 200 + "lost | because |",
        "*" * 5000 + "lost" + "*" * 5000,
        "[" * 3000 + "lost" + "](" * 3000,
        "```" + "\n" + "lost",
        "lost <b>bold</b> <unknown> &amp; &lt;b&gt;",
    ],
    ids=["quotes", "lists", "wide table", "long cell", "stars", "brackets", "open fence", "html"],
)
def test_no_markdown_hides_a_word(form: str, text: str) -> None:
    shown = written(sessions_of([happened("execution.output", turn="m", kind="text", text=text)]), form, Reading())
    assert "".join(re.findall("[lost]", shown)).count("lost") >= 1
    assert shown.count("word59") == text.count("word59") and max(map(len, shown.splitlines())) < 100_000
