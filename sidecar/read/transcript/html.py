"""A transcript as one HTML file: without scripts or external content, readable in light and dark mode. Pure.

Every text is escaped. Answers are rendered from Markdown without raw HTML; links may lead only to http and https
addresses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby, pairwise
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token

from sidecar.read.changes.changes import Edit, TurnChanges, files_of, sums
from sidecar.read.changes.edits import hunks_of
from sidecar.read.transcript import wording as words
from sidecar.read.transcript.attached import is_image
from sidecar.read.transcript.coloured import coloured
from sidecar.read.transcript.markdown_text import is_whole, parser
from sidecar.read.transcript.model import Call, Reading, Session, Turn
from sidecar.read.transcript.screen import screen
from sidecar.read.transcript.walk import Piece, pieces, turn_pieces
from sidecar.read.wording import local_time, one_line, printable

_STYLE = """
:root { color-scheme: light dark; --text: #1f2328; --quiet: #636c76; --line: #d1d9e0; --soft: #f6f8fa;
  --user: #3b5bdb; --good: #116329; --good-soft: #dafbe1; --bad: #b62324; --bad-soft: #ffebe9; --asks: #9a6700; }
@media (prefers-color-scheme: dark) { :root { --text: #d6dde5; --quiet: #8b949e; --line: #343b44; --soft: #171c23;
  --user: #8ea4ff; --good: #56d364; --good-soft: #12261e; --bad: #ff7b72; --bad-soft: #301a1e; --asks: #d9a441; }
  body { background: #0e1217; } }
body { font: 16px/1.6 system-ui, sans-serif; color: var(--text); max-width: 52rem; margin: 2.5rem auto;
  padding: 0 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.3; margin: 0; }
footer { border-top: 1px solid var(--line); margin-top: 3rem; padding-top: .8rem; }
.facts, .end, .rest, summary, time { color: var(--quiet); font-size: .85rem; }
.prompt { background: var(--soft); border-left: 3px solid var(--user); border-radius: 0 6px 6px 0;
  padding: .5rem 1rem; margin: 2.2rem 0 1.2rem; }
.prompt header { color: var(--user); font-weight: 600; }
.prompt p { white-space: pre-wrap; margin: .2rem 0; }
.undone p { text-decoration: line-through; }
.agent { margin: 1.4rem 0 .4rem; font-weight: 600; } .agent span { color: var(--quiet); font-weight: 400; }
.call { margin: 1rem 0; } .call > p { margin: 0; }
pre, code { font: .85rem/1.5 ui-monospace, Menlo, Consolas, monospace; }
pre { background: var(--soft); border: 1px solid var(--line); border-radius: 6px; padding: .6rem .8rem;
  margin: .4rem 0; overflow-x: auto; white-space: pre-wrap; }
code { background: var(--soft); border-radius: 4px; padding: .1em .3em; } pre code { padding: 0; }
.rest { color: var(--quiet); } .bad { color: var(--bad); } .ask { color: var(--asks); margin: .3rem 0; }
.waiting { font-weight: 600; } .result { border-left: 3px solid var(--line); padding-left: 1rem; }
blockquote, details { border-left: 3px solid var(--line); margin: .5rem 0; padding-left: 1rem; }
img { max-width: 100%; } h2 { font-size: 1rem; margin: 1.6rem 0 .4rem; }
:target { scroll-margin-top: 1rem; outline: 2px solid var(--user); }
figure { margin: 1.6rem 0 0; } .wide { overflow-x: auto; } figcaption { color: var(--quiet); font-size: .85rem; }
.changed { margin: 0; padding-left: 1.2rem; } .changed a { color: inherit; }
blockquote { color: var(--quiet); } .reasoning { color: var(--quiet); white-space: pre-wrap; }
"""

ANSWERS = """
:root { --link: #0a58ca; --key: #8250df; --text-of: #0a6640; --number: #953800; --remark: #5d636f; --red: #b62324;
  --green: #116329; --amber: #7a5200; --blue: #0a58ca; --pink: #8b2fa8; --cyan: #0b6070; }
@media (prefers-color-scheme: dark) { :root { --link: #79b8ff; --key: #d2a8ff; --text-of: #7ee0a0; --number: #ffb077;
  --remark: #9aa1ae; --red: #ff8b84; --green: #62d488; --amber: #e2b153; --blue: #79b8ff; --pink: #dfa8f5;
  --cyan: #66d0e0; } }
.said h2, .said h3, .said h4, .said h5, .said h6 { color: inherit; line-height: 1.3; margin: 1.3em 0 .4em; }
.said h2 { font-size: 1.3em; } .said h3 { font-size: 1.15em; } .said h4, .said h5, .said h6 { font-size: 1em; }
.said h5, .said h6 { font-weight: 500; } .said > :first-child { margin-top: 0; }
.said a { color: var(--link); text-decoration: underline; text-underline-offset: 2px; }
.said .wide { overflow-x: auto; margin: .6em 0; } .said table { border-collapse: collapse; }
.said td, .said th { border: 1px solid var(--line); padding: .2em .6em; text-align: start; overflow-wrap: normal; }
.said th { background: var(--soft); } .said .right { text-align: right; } .said .center { text-align: center; }
.said .left { text-align: left; } .said li { margin: .2em 0; }
.said .task { list-style: none; margin-inline-start: -1.2em; }
.said { margin: .8em 0; } .said blockquote { border: 0 solid var(--line); border-inline-start-width: 3px; padding: 0;
  margin: .6em 0; padding-inline-start: 1em; }
.said sup { line-height: 0; font-size: .75em; } .said .footnote sup { margin-inline-end: .3em; }
.said .footnote { font-size: .85em; color: var(--remark); }
.said hr { border: 0; border-top: 1px solid var(--line); } .said ul, .said ol { padding-inline-start: 1.6em; }
.code .k { color: var(--key); } .code .s { color: var(--text-of); } .code .n { color: var(--number); }
.code .c { color: var(--remark); font-style: italic; } pre .b { font-weight: 700; }
.a1 { color: var(--red); } .a2 { color: var(--green); } .a3 { color: var(--amber); }
.a4 { color: var(--blue); } .a5 { color: var(--pink); } .a6 { color: var(--cyan); }
.diff span { display: block; margin: 0 -.8rem; padding: 0 .8rem; }
.add { background: var(--good-soft); color: var(--good); } .del { background: var(--bad-soft); color: var(--bad); }
.hunk { color: var(--quiet); }
"""
"""The style of answers, code, outputs and diffs, for the exports and the inspector."""

_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">"""


def _image(renderer: RendererHTML, tokens: Sequence[Token], number: int, options: Any, env: Any) -> str:
    """Replace an image that a browser would fetch with its text and address. One that is in the answer is shown."""
    source, text = str(tokens[number].attrGet("src") or ""), tokens[number].content
    if is_image(source):
        return f'<img src="{escape(source)}" alt="{escape(text)}">'
    return escape(f"[image: {text} {source}]")


def _code(renderer: RendererHTML, tokens: Sequence[Token], number: int, options: Any, env: Any) -> str:
    """A block of code in the colours of its language."""
    text, (language, *_) = tokens[number].content, (tokens[number].info.split() or [""])
    if language in ("diff", "patch"):
        return _diff_html(text.removesuffix("\n").split("\n"))
    return f'<pre class="code"><code>{coloured(text, language)}</code></pre>\n'


def _table(renderer: RendererHTML, tokens: Sequence[Token], number: int, options: Any, env: Any) -> str:
    """A table may be wider than the page. The keyboard scrolls it, too."""
    return '<div class="wide" tabindex="0"><table>' if tokens[number].nesting == 1 else "</table></div>"


def _renderer() -> MarkdownIt:
    made = parser(images=True, breaks=True)
    rules = {"image": _image, "fence": _code, "code_block": _code, "table_open": _table, "table_close": _table}
    for name, rule in rules.items():
        made.add_render_rule(name, rule)
    return made


def _shaped(tokens: Sequence[Token]) -> None:
    """Give parsed Markdown what a page needs: headings below those of the page, links that open beside it, boxes to
    tick, columns and directions."""
    top = min((int(token.tag[1]) for token in tokens if token.type == "heading_open"), default=2)
    for number, token in enumerate(tokens):
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(int(token.tag[1]) - top + 2, 6)}"
        if token.nesting == 1 and (token.level == 0 or token.type in _CELLS):  # what is below goes the same way
            token.attrSet("dir", "auto")
        if style := token.attrs.pop("style", None):
            token.attrSet("class", str(style).removeprefix("text-align:"))
        before, first = tokens[max(number - 2, 0)], (token.children or [token])[0]
        if before.type == "list_item_open" and (mark := _TICKS.get(first.content[:4].lower())):
            first.content = f"{mark} {first.content[4:]}"
            before.attrSet("class", "task")
        for part in token.children or ():
            if part.type == "link_open":
                to = str(part.attrGet("href") or "")
                part.attrs = {} if is_image(to) else {"href": to, "target": "_blank", "rel": _BESIDE}


def _raised(tokens: Sequence[Token]) -> None:
    """Raise the marks of footnotes, such as ``[^1]``. A line that begins with one and a colon is the note itself."""
    inlines = [(before, token) for before, token in pairwise(tokens) if token.type == "inline"]
    noted = {found[1] for _, token in inlines for found in _NOTE.finditer(token.content)}
    for before, token in inlines:
        if before.type == "paragraph_open" and _NOTE.match(token.content):
            before.attrSet("class", "footnote")
        made = list[Token]()
        for part in token.children or ():
            last, names, text = made[-1].type if made else "softbreak", noted, part.content
            if last == "link_open" and text.startswith("^"):  # a note that is an address alone is a link to the parser
                names, text = {text[1:]}, f"[{text}]"
            elif last in _BREAKS:
                text = _NOTE.sub(r"[^\1]", text)
            if part.type != "text" or not names:
                made.append(part)
                continue
            for number, each in enumerate(_MARK.split(text)):
                if number % 2 and each in names:
                    made += [Token("sup_open", "sup", 1), _plain(each), Token("sup_close", "sup", -1)]
                elif each:
                    made.append(_plain(f"[^{each}]" if number % 2 else each))
        token.children = made


def _plain(text: str) -> Token:
    return Token("text", "", 0, content=text)


_MARK = re.compile(r"\[\^([^\]\[\s^]{1,40})\]")
_NOTE = re.compile(rf"^{_MARK.pattern}:[ \t]+", re.MULTILINE)
_BREAKS = ("softbreak", "hardbreak")
_BESIDE = "noopener noreferrer nofollow"
_TICKS = {"[ ] ": "☐", "[x] ": "☑"}
_CELLS = ("td_open", "th_open")

_MARKDOWN = _renderer()


def html_lines(roots: list[Session], reading: Reading) -> Iterator[str]:
    """The page, a piece at a time."""
    yield _HEAD
    style = f"<style>{_STYLE}{ANSWERS}{reading.style}</style>"
    yield f"<title>{_text(roots[0].name or roots[0].title if roots else '')}</title>\n{style}\n</head>\n<body>"
    is_top = bool(reading.top)
    for piece in pieces(roots, reading, opens=True):
        if is_top and piece.kind not in ("title", "note", "waiting"):
            is_top = False
            yield reading.top
        yield from _rendered(piece, reading)
    if reading.proof:
        yield f'<footer class="facts">{_text(reading.proof)}</footer>'
    yield "</body>\n</html>"


def files_html(turns: list[TurnChanges]) -> str:
    """The files that the turns changed, each of which leads to its first edit; empty if there are none."""
    found = files_of(turns)
    if not found:
        return ""
    rows = (
        f'<li><a href="#{escape(edits[0].event)}">{_text(file)}</a>{_counts(edits)}</li>'
        for file, edits in found.items()
    )
    return f'<h2>Files changed</h2><ul class="changed">{"".join(rows)}</ul>'


def _counts(edits: list[Edit]) -> str:
    changed = sums(edits)
    return " rewritten" if changed["added"] is None else f" +{changed['added']} −{changed['removed']}"


def turn_html(turn: Turn, directory: str, reading: Reading) -> str:
    """One turn of a session that ran in ``directory``, as in ``html_lines``."""
    found = turn_pieces([turn], directory, reading, opens=True)
    return "\n".join(line for piece in found for line in _rendered(piece, reading))


def markdown_html(text: str) -> str:
    """Markdown as harmless HTML, even where characters are written as entities."""
    tokens = _MARKDOWN.parse(text := printable(text))
    if not is_whole(tokens):
        return f"<pre>{escape(text)}</pre>"
    _shaped(tokens)
    _raised(tokens)
    return printable(str(_MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {})))


def _text(text: str) -> str:
    return escape(one_line(text))


def _printed(text: str) -> str:
    return printable(text).expandtabs(4)


def _lines(text: str) -> str:
    return escape(_printed(text))


def _rendered(piece: Piece, reading: Reading) -> Iterator[str]:
    text, facts = piece.text, piece.facts
    match piece.kind:
        case "title":
            yield f'<h1 dir="auto">{_text(text)}</h1>'
            yield f'<p class="facts">{_text(" · ".join(filter(None, (piece.of.directory, facts, piece.of.id))))}</p>'
        case "note":
            yield f'<p class="facts">{_text(text)}</p>'
        case "speaker":
            yield f'<p class="agent">{_text(text)} <span>{_text(facts)}</span></p>'
        case "prompt":
            head = f"<header>{_text(piece.of.actor)} <time>{_text(facts)}</time></header>"
            told = "".join(_told(text)) if piece.of.actor == "opencode" else f'<p dir="auto">{_lines(text)}</p>'
            said = f"{told}{_images(piece.of.images)}"
            yield f'<section class="prompt{" undone" * piece.of.undone}"{_id(piece)}>{head}{said}</section>'
        case "answer":
            yield f'<section class="said"{_id(piece)}>{markdown_html(text)}</section>'
        case "result":
            who = f'<p class="agent">{_text(facts) or "the child session"} <span>answered</span></p>'
            yield f'<section class="said result">{who}{markdown_html(text)}</section>'
        case "aside":
            yield f'<details{" open" * reading.full}><summary>{facts}</summary><div class="reasoning">'
            yield f"{_lines(text)}</div></details>"
        case "ask" | "waiting":
            about = f": <code>{_text(text)}</code>" if text else ""
            # The same ask may be shown again at the top.
            mark = _id(piece) if piece.kind == "ask" else ""
            yield f'<p class="ask{" waiting" * (piece.of.state == "waiting")}"{mark}>{_text(facts)}{about}</p>'
        case "notice":
            bad = " bad" * (piece.of.what in ("error", "gap"))
            yield f'<p class="end{bad}"{_id(piece)}>{local_time(piece.of.ts, "%H:%M:%S")} {_text(text)}</p>'
        case "end":
            yield f'<p class="end{" bad" * (facts == "failed")}">{_text(text)}</p>'
        case "call":
            yield from _call(piece, reading)
        case "given":
            yield f'<pre class="code">{coloured(_printed(text), "json")}</pre>'
        case "diff":
            yield from _diff(piece, reading)
        case "below":
            yield f"<details{' open' * reading.children}><summary>{_text(text)}</summary>"
            for part in piece.parts:
                yield from _rendered(part, reading)
            yield "</details>"


def _told(text: str) -> Iterator[str]:
    """A message of the sidecar: an answer that it quotes as Markdown, a diff as one, and other quotes as they are."""
    before = ""
    for is_quote, group in groupby(text.split("\n"), key=lambda line: line.startswith(">")):
        lines = list(group)
        inner = "\n".join(line[1:].removeprefix(" ") for line in lines)
        if is_quote and inner.startswith("diff --git "):
            for part in re.split(r"^(?=diff --git )", inner, flags=re.MULTILINE)[1:]:
                yield f"<p><code>{_text(part.split(chr(10), 1)[0].rpartition(' b/')[2])}</code></p>"
                yield _diff_html(hunks_of(part).split("\n"))
        elif is_quote and not before.endswith(":"):
            yield f'<section class="said result">{markdown_html(inner)}</section>'
        else:
            yield f'<p dir="auto">{_lines(chr(10).join(lines))}</p>'
        before = lines[-1]


def _id(piece: Piece) -> str:
    """Where a timeline and a list of files lead to."""
    return f' id="{escape(piece.of.event)}"'


def _call(piece: Piece, reading: Reading) -> Iterator[str]:
    call = piece.of
    failure = words.failure_of(call)
    facts = "".join(
        f' <span class="facts{" bad" * (fact == failure)}">· {_text(fact)}</span>' for fact in words.call_facts(call)
    )
    about = f" <code>{_text(piece.text)}</code>" if piece.text and call.tool != "bash" else ""
    yield f'<section class="call"{_id(piece)}><p><b>{_text(call.tool)}</b>{about}{facts}</p>'
    for part in piece.parts:
        if part.kind != "output":
            yield from _rendered(part, reading)
        elif shown := _output(call, piece.text, part.text, reading):
            yield f'<pre class="{"bad" if call.failed else "output"}">{shown}</pre>'
    yield f"{_images(call.images)}</section>"


def call_html(call: Call) -> str:
    """One call without its asks and its child session; nothing of it is left out."""
    reading = Reading(full=True)
    return "".join(
        line
        for piece in turn_pieces([Turn("", items=[call])], "", reading, opens=False)
        for line in _rendered(piece, reading)
    )


def _output(call: Call, command: str, output: str, reading: Reading) -> str:
    """What stands in the box of a call. What was run must not pass for its own output, nor be overwritten by it."""
    head, left_out, tail = words.shortened(output.split("\n"), words.OUTPUT_LINES, full=reading.full)
    lines = screen("\n".join([*head, *[""] * bool(left_out), *tail])).split("\n")
    if left_out:
        lines[len(head)] = _rest(left_out)
    ran = _lines(f"$ {command}") if call.tool == "bash" else ""
    return "\n".join(filter(None, (ran, "\n".join(lines) if output else "")))


def _rest(count: int) -> str:
    """Stands in place of lines that are left out; the page makes a button of it."""
    return f'<span class="rest">{words.more_lines(count)}</span>'


def _images(urls: list[str]) -> str:
    """Images that are in the page itself, so that a browser fetches nothing."""
    return "".join(f'<img src="{escape(url)}" alt="">' for url in urls)


def _diff(piece: Piece, reading: Reading) -> Iterator[str]:
    if piece.facts:
        yield f"<p><code>{_text(piece.of.file)}</code> {_text(piece.facts)}</p>"
    yield _diff_html(piece.text.removesuffix("\n").split("\n"), full=reading.full)


def _diff_html(lines: list[str], *, full: bool = True) -> str:
    kinds = {"+": "add", "-": "del", "@": "hunk"}
    head, left_out, tail = words.shortened(lines, words.DIFF_LINES, full=full)

    def spans(some: list[str]) -> str:
        return "".join(f'<span class="{kinds.get(line[:1], "same")}">{_lines(line) or " "}</span>' for line in some)

    return f'<pre class="diff">{spans(head)}{_rest(left_out) if left_out else ""}{spans(tail)}</pre>'
