"""How answers, code and outputs look in a page: shaped by classes, with each character escaped and none lost."""

from __future__ import annotations

import re
import time
from html import unescape
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.read.transcript.coloured import _LANGUAGES, coloured
from sidecar.read.transcript.html import markdown_html
from sidecar.read.transcript.model import Reading
from sidecar.read.transcript.screen import screen
from tests.sidecar.read.conversations import happened, sessions_of, written

PIECES = st.sampled_from(
    ["def f", "'a", '"b\\', "`", "/*", "*/", "//", "#", "--", '"""', "1.5e3", "0xff", "\n", "<b>", "&lt;", "\\", "if"]
)


def texts_of(html: str) -> str:
    return unescape(re.sub(r"</?(?:span|code|pre)[^<>]*>", "", html))


def kinds_of(html: str) -> list[tuple[str, str]]:
    return [(kind, unescape(text)) for kind, text in re.findall(r'<span class="([^"]*)">([^<]*)</span>', html)]


@given(st.sampled_from([*_LANGUAGES, "", "nobody's"]), st.lists(PIECES | st.text(max_size=5), max_size=20))
def test_each_character_of_code_is_written_once_and_escaped(language: str, pieces: list[str]) -> None:
    code = "".join(pieces)
    html = coloured(code, language)
    assert texts_of(html) == code
    assert set(re.findall(r"<[^<>]*>", html)) <= {"</span>", *(f'<span class="{kind}">' for kind in "kscn")}


@pytest.mark.parametrize(
    ("language", "code", "wanted"),
    [
        ("py", "if x: # why\n  return 'a', 12", "k:if c:# why k:return s:'a' n:12"),
        ("TS", "const a = `x${1}` // b", "k:const s:`x${1}` c:// b"),
        ("rust", "fn f<'a>(c: char) { 'x' }", "k:fn s:'x'"),
        ("sql", "SELECT a -- b\nFROM t", "k:SELECT c:-- b k:FROM"),
        ("sh", "if a#b; then echo $x # c", "k:if k:then k:echo c:# c"),
        ("json", '{"a": [1, true]}', 's:"a" n:1 k:true'),
        ("html", "<!-- <b> --><a href='x'>", "c:<!-- <b> --> s:'x'"),
        ("none", "if 1", ""),
    ],
)
def test_code_has_the_colours_of_its_language(language: str, code: str, wanted: str) -> None:
    assert " ".join(f"{kind}:{text}" for kind, text in kinds_of(coloured(code, language))) == wanted


PNG = "data:image/png;base64,iVBORw0KGgo="


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        (f"![a <b>]({PNG})", f'<img src="{PNG}" alt="a &lt;b&gt;">'),
        (f"![]({PNG.replace('png', 'svg+xml')})", "![]("),
        (f'![a](<{PNG}" onerror=alert(1)>)', "&quot; onerror"),
        ("![a](https://a.example/b.png)", "[image: a https://a.example/b.png]"),
        ("![a](data:image/gif;base64," + "A" * 3_000_000 + ")", "![a]("),
        (f"[a]({PNG})", "<a>a</a>"),
    ],
    ids=["image", "svg", "quote", "address", "large", "link"],
)
def test_an_image_is_shown_only_if_it_is_in_the_answer_itself(answer: str, shown: str) -> None:
    html = markdown_html(answer)
    assert shown in html
    assert html.count("<img") == (shown[:4] == "<img") and "href" not in html


@pytest.mark.parametrize("piece", ["/*", '"', "'", "`", '"""', "<!--", "a#", "0", "\\", "''' "])
def test_no_code_takes_longer_than_its_length_allows(piece: str) -> None:
    begun = time.process_time()
    for language in ("py", "js", "rust", "html", "sql", "yaml"):
        coloured(piece * 30_000, language)
    assert time.process_time() - begun < 5


@pytest.mark.parametrize(
    ("output", "text", "kinds"),
    [
        ("10%\r50%\r100%\r\nok", "100%\nok", []),
        ("abc\rX", "Xbc", []),
        ("abc\r\x1b[KX\b\bYZ", "YZ", []),
        (
            "\x1b[31mred\x1b[0m \x1b[1;32mbold\n green\x1b[39m b\x1b[22m n",
            "red bold\n green b n",
            [("a1", "red"), ("a2 b", "bold"), ("a2 b", " green"), ("b", " b")],
        ),
        ("\x1b[38;5;1mr\x1b[38;2;1;2;3mt\x1b[48;5;31mu\x1b[93my\x1b[mn", "rtuyn", [("a1", "r"), ("a3", "y")]),
        ("\x1b]0;title\x07a\x1b[2Jb\x1b[3", "ab[3", []),
        ("<b>\x1b[35m<i>\u202e", "<b><i>", [("a5", "<i>")]),
        ("\x1b[2K\x1b[999999999999;38m\x1b[38;5m\x1b[38;5;x<m", "<m", []),
    ],
)
def test_an_output_looks_as_in_its_terminal(output: str, text: str, kinds: list[tuple[str, str]]) -> None:
    html = screen(output)
    assert (texts_of(html), kinds_of(html)) == (text, kinds)


@given(st.text(st.sampled_from("\x1b[0;138mK\r\b<&a\n\t\x07\u202e"), max_size=60))
def test_no_output_is_more_than_text_and_colours(output: str) -> None:
    html = screen(output)
    assert re.fullmatch(r'(?:[^<>]|<span class="(?:a[1-6])?(?: ?b)?">|</span>)*', html)
    assert not [c for c in html if not c.isprintable() and c != "\n"]


def test_an_output_cannot_overwrite_the_command_that_ran() -> None:
    given: dict[str, Any] = {"turn": "m", "message": "m", "kind": "tool", "status": "completed", "tool": "bash"}
    command = "rm -r /home\rls \x1b[30m"
    events = [happened("execution.step", call="c", input={"command": command}, output="\rok\b\b\b\b", **given)]
    shown = written(sessions_of(events), "html", Reading())
    assert re.search(r'<pre class="output">\$ rm -r /home ls +\nok</pre>', shown)


@pytest.mark.parametrize("actor", ["opencode", "user"])
def test_a_result_of_background_work_has_its_answer_and_its_diff(actor: str) -> None:
    diff = "diff --git a/q.py b/q.py\nindex 1..2\n--- a/q.py\n+++ b/q.py\n@@ -1 +1 @@\n-<a>\n+> b"
    said = f"It is **done**\nFiles:\n__init__.py +1 -1\nChanges:\n{diff}"
    quoted = re.sub("^(?!Files:|Changes:)", "> ", said, flags=re.MULTILINE)
    text = f'<background-agent id="int_1" state="completed" title="t">\n{quoted}\nNote: <i>\n</background-agent>'
    shown = written(
        sessions_of([happened("agent.input", actor=actor, message="m", parts=[{"type": "text", "text": text}])]), "html"
    )
    spans = [("hunk", "@@ -1 +1 @@"), ("del", "-<a>"), ("add", "+> b")]
    is_result = actor == "opencode"
    assert ("<strong>done</strong>" in shown, spans == kinds_of(shown.partition("<pre")[2])) == (is_result, is_result)
    assert "&gt; __init__.py +1 -1" in shown and "Note: &lt;i&gt;" in shown


def test_markdown_is_shaped_by_classes() -> None:
    html = markdown_html(
        "### Top\n\n##### Below\n\n- [ ] open\n- [X] done\n- [x](http://a.example)\n\n|a|b|\n|-:|:-:|\n|1|2|\n\n"
        "```diff\n-a\n+<b>\n```\n\n```js\nlet x\n```\n\n- li\n\n      plain <c>\n"
    )
    assert "<h2 dir=" in html and "<h4 dir=" in html
    assert html.count('<li class="task">') == 2 and "☐ open" in html and "☑ done" in html
    assert '<a href="http://a.example" target="_blank" rel="noopener noreferrer nofollow">x</a>' in html
    assert 'class="right"' in html and 'class="center"' in html and "style=" not in html
    assert '<pre class="diff"><span class="del">-a</span><span class="add">+&lt;b&gt;</span></pre>' in html
    assert '<span class="k">let</span> x' in html and "plain &lt;c&gt;" in html
