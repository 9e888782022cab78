"""A transcript as one HTML file: without scripts or external content, readable in light and dark mode. Pure.

Every text is escaped. Answers are rendered from Markdown without raw HTML; links may lead only to http and https
addresses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token

from sidecar.read.changes.approvals import Ask
from sidecar.read.changes.edits import Diff
from sidecar.read.transcript import wording as words
from sidecar.read.transcript.markdown_text import is_whole, parser
from sidecar.read.transcript.model import Call, Item, Prompt, Reading, Said, Session, Turn
from sidecar.read.wording import local_time, one_line, printable

_STYLE = """
:root { color-scheme: light dark; --text: #1f2328; --quiet: #636c76; --line: #d1d9e0; --soft: #f6f8fa;
  --user: #0969da; --good: #116329; --good-soft: #dafbe1; --bad: #b62324; --bad-soft: #ffebe9; --asks: #9a6700; }
@media (prefers-color-scheme: dark) { :root { --text: #d6dde5; --quiet: #8b949e; --line: #343b44; --soft: #171c23;
  --user: #58a6ff; --good: #56d364; --good-soft: #12261e; --bad: #ff7b72; --bad-soft: #301a1e; --asks: #d9a441; }
  body { background: #0e1217; } }
body { font: 16px/1.6 system-ui, sans-serif; color: var(--text); max-width: 52rem; margin: 2.5rem auto;
  padding: 0 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.3; margin: 0; }
footer { border-top: 1px solid var(--line); margin-top: 3rem; padding-top: .8rem; }
.facts, .end, .more, summary, time { color: var(--quiet); font-size: .85rem; }
.prompt { border-left: 3px solid var(--user); padding: .1rem 0 .1rem 1rem; margin: 2.2rem 0 1.2rem; }
.prompt header { color: var(--user); font-weight: 600; }
.prompt p { white-space: pre-wrap; margin: .2rem 0; }
.undone p { text-decoration: line-through; }
.agent { margin: 1.4rem 0 .4rem; font-weight: 600; } .agent span { color: var(--quiet); font-weight: 400; }
.call { margin: 1rem 0; } .call > p { margin: 0; }
pre, code { font: .85rem/1.5 ui-monospace, Menlo, Consolas, monospace; }
pre { background: var(--soft); border: 1px solid var(--line); border-radius: 6px; padding: .6rem .8rem;
  margin: .4rem 0; overflow-x: auto; white-space: pre-wrap; }
code { background: var(--soft); border-radius: 4px; padding: .1em .3em; } pre code { padding: 0; }
.diff span { display: block; margin: 0 -.8rem; padding: 0 .8rem; }
.add { background: var(--good-soft); color: var(--good); } .del { background: var(--bad-soft); color: var(--bad); }
.hunk, .more { color: var(--quiet); } .bad { color: var(--bad); } .ask { color: var(--asks); margin: .3rem 0; }
.waiting { font-weight: 600; }
.said table { border-collapse: collapse; } .said td, .said th { border: 1px solid var(--line); padding: .2rem .6rem; }
blockquote, details { border-left: 3px solid var(--line); margin: .5rem 0; padding-left: 1rem; }
img { max-width: 100%; }
blockquote { color: var(--quiet); } .reasoning { color: var(--quiet); white-space: pre-wrap; }
"""

_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">"""


def _link_open(renderer: RendererHTML, tokens: Sequence[Token], number: int, options: Any, env: Any) -> str:
    return f'<a href="{escape(str(tokens[number].attrGet("href") or ""))}" rel="noopener noreferrer nofollow">'


def _image(renderer: RendererHTML, tokens: Sequence[Token], number: int, options: Any, env: Any) -> str:
    """Replace an image with its text and address, because a browser would fetch the image."""
    return escape(f"[image: {tokens[number].content} {tokens[number].attrGet('src') or ''}]")


def _renderer() -> MarkdownIt:
    made = parser(breaks=True)
    made.add_render_rule("link_open", _link_open)
    made.add_render_rule("image", _image)
    return made


_MARKDOWN = _renderer()


def html_lines(roots: list[Session], reading: Reading) -> Iterator[str]:
    """The page, a piece at a time."""
    yield _HEAD
    yield f"<title>{_text(roots[0].title if roots else '')}</title>\n<style>{_STYLE}</style>\n</head>\n<body>"
    for session in roots:
        yield f"<h1>{_text(session.title or '(no title)')}</h1>"
        facts = " · ".join(filter(None, (session.directory, words.facts_of(session), session.id)))
        yield f'<p class="facts">{_text(facts)}</p>'
        for note in reading.notes:
            yield f'<p class="facts">{_text(note)}</p>'
        for ask in words.waiting_in(session.turns):
            yield from _ask(ask, reading)
        yield from _turns(session.turns, session.directory, reading)
    if reading.proof:
        yield f'<footer class="facts">{_text(reading.proof)}</footer>'
    yield "</body>\n</html>"


def turn_html(turn: Turn, directory: str, reading: Reading) -> str:
    """One turn of a session that ran in ``directory``, as in ``html_lines``."""
    return "\n".join(_turns([turn], directory, reading))


def markdown_html(text: str) -> str:
    """Markdown as harmless HTML, even where characters are written as entities."""
    tokens = _MARKDOWN.parse(text := printable(text))
    if not is_whole(tokens):
        return f"<pre>{escape(text)}</pre>"
    return printable(str(_MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {})))


def _text(text: str) -> str:
    return escape(one_line(text))


def _lines(text: str) -> str:
    return escape(printable(text).expandtabs(4))


def _turns(turns: list[Turn], directory: str, reading: Reading) -> Iterator[str]:
    for turn in turns:
        is_said = False
        items, later = words.split_at_end(turn)
        for item in items:
            if not isinstance(item, Prompt) and not is_said and turn.agent:
                is_said = True
                yield f'<p class="agent">{_text(turn.agent)} <span>{_text(words.turn_facts(turn))}</span></p>'
            yield from _item(item, directory, reading)
        if end := words.turn_end(turn):
            yield f'<p class="end{" bad" * (turn.outcome == "failed")}">{_text(end)}</p>'
        for item in later:
            yield from _item(item, directory, reading)


def _item(item: Item, directory: str, reading: Reading) -> Iterator[str]:
    if isinstance(item, Prompt):
        facts = f"<time>{_text(words.prompt_facts(item))}</time>"
        yield f'<section class="prompt{" undone" * item.undone}"><header>{_text(item.actor)} {facts}</header>'
        yield f"<p>{_lines(words.prompt_text(item))}</p>{_images(item.images)}</section>"
    elif isinstance(item, Said) and item.kind == "answer":
        yield f'<section class="said">{markdown_html(item.text)}</section>'
    elif isinstance(item, Said):
        yield f'<details{" open" * reading.full}><summary>{item.kind}</summary><div class="reasoning">'
        yield f"{_lines(item.text)}</div></details>"
    elif isinstance(item, Ask):
        yield from _ask(item, reading)
    elif isinstance(item, Call):
        yield from _call(item, directory, reading)
    elif item.what != "other" or reading.full:
        bad = " bad" * (item.what in ("error", "gap"))
        yield f'<p class="end{bad}">{local_time(item.ts, "%H:%M:%S")} {_text(words.notice_text(item))}</p>'


def _images(urls: list[str]) -> str:
    """Images that are in the page itself, so that a browser fetches nothing."""
    return "".join(f'<img src="{escape(url)}" alt="">' for url in urls)


def _call(call: Call, directory: str, reading: Reading) -> Iterator[str]:
    facts = "".join(f' <span class="facts">· {_text(fact)}</span>' for fact in words.call_facts(call))
    text, output = words.call_text(call, directory), words.call_output(call, full=reading.full)
    output = words.shortened_text(output, words.OUTPUT_LINES, full=reading.full)
    if call.tool == "bash":
        text, output = "", "\n".join(filter(None, (f"$ {text}", output)))
    elif text:
        text = f" <code>{_text(text)}</code>"
    yield f'<section class="call"><p><b>{_text(call.tool)}</b>{text}{facts}</p>'
    for ask in call.asks:
        yield from _ask(ask, reading, asked=not words.is_about(ask, call))
    if reading.full and (given := words.call_input(call)):
        yield f"<pre>{_lines(given)}</pre>"
    if output:
        yield f'<pre class="{"bad" if call.error else "output"}">{_lines(output)}</pre>'
    yield _images(call.images)
    for diff in call.diffs:
        yield from _diff(diff, reading, named=len(call.diffs) > 1)
    if call.child is not None and call.child.turns:
        yield f"<details{' open' * reading.children}><summary>{_text(call.child.title or 'child session')}</summary>"
        yield from _turns(call.child.turns, directory, reading)
        yield "</details>"
    if call.tool == "task" and not reading.children and (result := words.call_result(call)):
        yield f'<section class="said">{markdown_html(result)}</section>'
    yield "</section>"


def _diff(diff: Diff, reading: Reading, *, named: bool) -> Iterator[str]:
    if named:
        yield f"<p><code>{_text(diff.file)}</code> {_text(words.diff_facts(diff))}</p>"
    kinds = {"+": "add", "-": "del", "@": "hunk"}
    lines = words.shortened_lines(diff.patch.split("\n"), words.DIFF_LINES, full=reading.full)
    spans = (f'<span class="{kinds.get(line[:1], "same")}">{_lines(line) or " "}</span>' for line in lines)
    yield f'<pre class="diff">{"".join(spans)}</pre>'


def _ask(ask: Ask, reading: Reading, *, asked: bool = True) -> Iterator[str]:
    about = f": <code>{_text(words.asked_text(ask))}</code>" if asked or ask.state == "waiting" else ""
    waiting = " waiting" * (ask.state == "waiting")
    yield f'<p class="ask{waiting}">{_text(words.answer_text(ask, reading.now_ms))}{about}</p>'
