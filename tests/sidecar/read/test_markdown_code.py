"""A transcript in Markdown has no HTML of its prompts and answers, and all of their code, whatever stands around it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from sidecar.read.transcript.markdown import _quoted, contained
from sidecar.read.transcript.model import Reading
from tests.sidecar.read.conversations import happened, sessions_of, written

CODE = ("fence", "code_block", "code_inline")
PIECES = (
    *("plain words", "a `Array<string>` b", "``x ` <b>``", "`open <i>", "Array<string>", "a < b", "\\<b>", "\\\\<b>"),
    *("<details>", "<summary>more", "<!-- hidden", "<?php", "<![CDATA[", "<pre>", "</div>", '<a href="`">', "a <b c"),
    *(
        "```ts\nlet a: Map<string>\n\tx<y>\n```",
        "~~~\n<b>\n~~~",
        "````\n```\n<b>\n````",
        "``` not `a fence",
        "```\n<u>",
    ),
    *(
        "    four<spaces>",
        "\ta<tab>",
        "\t\ttwo<tabs>",
        "- item `a<b>`\n\n      deep<code>",
        "1. one\n   ```\n   <b>\n   ```",
    ),
    *(
        "> quoted `<b>`\n> <i>",
        "| a | `b<c>` |\n|---|---|\n| <d> | `e<f>` |",
        "![x](http://evil.example/a.png)",
        "`![x](y)`",
    ),
    *(
        "<http://auto.example>",
        "[a `<b>`](http://good.example)",
        "# `h<1>` <h>",
        "<script>\nalert(`1`)\n</script>",
        "&lt;b>",
    ),
)
TEXTS = st.lists(st.tuples(st.sampled_from(PIECES), st.sampled_from(("\n", "\n\n", " "))), min_size=1, max_size=8)


def readers() -> list[MarkdownIt]:
    """A reader that knows tables, and one that does not; both obey HTML."""
    return [MarkdownIt("commonmark").enable("strikethrough"), MarkdownIt("commonmark").enable(["table"])]


def parts(text: str, reader: MarkdownIt) -> list[Token]:
    return [part for block in reader.parse(text) for part in (block, *(block.children or ()))]


def codes(text: str, reader: MarkdownIt, kinds: tuple[str, ...] = CODE) -> list[str]:
    return [part.content for part in parts(text, reader) if part.type in kinds and part.content != "it"]


@given(TEXTS)
@example([("```\nnever closed <b>", "\n")])
@example([("\ta<tab>", "\n"), ("<details>", "\n\n"), ("`open <i>", "")])
def test_code_is_untouched_and_html_is_text(pieces: list[tuple[str, str]]) -> None:
    text = "".join(piece + between for piece, between in pieces)
    assume("\t" not in text or "1. one" not in text)  # a tab that indents code in a list is not the same in a quote
    for shown in (contained(text), _quoted(contained(text)), _quoted(_quoted(contained(text)))):
        told = "\n".join([*shown, "", "after `it`"])
        for reader in readers():
            found = parts(told, reader)
            assert not [part for part in found if part.type in ("html_block", "html_inline", "image")], told
            (*_, last) = [block for block in reader.parse(told) if block.type == "inline"]
            assert (last.content, last.level) == ("after `it`", 1), told
            # A block of HTML may begin in a line of inline code.
            kinds = CODE[:2] if re.search(r"^[\s>*+.)\d-]*<", text, re.M) else CODE
            # What is code for the one reader and not for the other stays harmless, and may look different.
            one, other = (
                codes(text, MarkdownIt("commonmark", {"html": False}).enable(known), kinds)
                for known in ("strikethrough", "table")
            )
            if one == other:
                assert _spaced(codes(told, reader, kinds)) == _spaced(one), told


def _spaced(found: list[str]) -> list[str]:
    """With single spaces: a quote moves tabs, so indentation may differ where a fence is itself indented."""
    return [" ".join(text.split()) for text in found]


PLAIN = "def f(a: Map<string>):\n\tif a:\n\t\treturn `<b>`  \n\n    x = 1"


@pytest.mark.parametrize("depth", range(3))
@pytest.mark.parametrize("indent", ["", "   "])
def test_each_character_of_fenced_code_stays(indent: str, depth: int) -> None:
    text = "1. one\n\n" * bool(indent) + "\n".join(indent + line for line in f"```py\n{PLAIN}\n```".split("\n"))
    shown = contained(text)
    for _ in range(depth):
        shown = _quoted(shown)
    assert codes("\n".join(shown), readers()[0]) == [PLAIN + "\n"]


def test_a_transcript_shows_code_as_it_was_given() -> None:
    text = "Use `Array<string>` for Array<number>.\n\n```ts\nlet a: Array<string>\n```\n\n<details>\n<summary>more"
    given: dict[str, Any] = {"turn": "m", "message": "m"}
    events = [
        happened("human.input", actor="user", message="m", parts=[{"type": "text", "text": text}]),
        happened("turn.started", message="m", agent="build"),
        happened("execution.output", kind="text", text=text, **given),
        happened("execution.output", kind="text", text="The end.", **given),
    ]
    markdown = written(sessions_of(events), "markdown", Reading())
    assert markdown.count("`Array<string>`") == markdown.count("let a: Array<string>") == 2
    assert markdown.count("Array\\<number>") == markdown.count("\\<details>") == 2
    html = MarkdownIt("commonmark").render(markdown)
    assert "<p>The end.</p>" in html and "<details>" not in html
