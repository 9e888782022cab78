"""The walk over a conversation: what a transcript tells, piece by piece, in which order. Pure.

Markdown and HTML lay out the same pieces. Add a new kind of item here, with the kinds of pieces that
every layout has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from sidecar.read.changes.approvals import Ask, answer_text
from sidecar.read.transcript import wording as words
from sidecar.read.transcript.model import Call, Item, Prompt, Reading, Said, Session, Turn, asks_below

Kind = Literal[
    "title", "note", "waiting", "speaker", "prompt", "answer", "aside", "notice", "ask", "call", "end",
    "given", "output", "diff", "below", "result",
]  # fmt: skip

ITEMS = ("prompt", "answer", "aside", "notice", "ask", "call")
"""The kinds of pieces that a layout sets apart from each other."""


class Piece(NamedTuple):
    """One piece. Its strings may be hostile, so a layout must make them harmless.

    * ``title``: ``text``, ``facts``, ``of`` a ``Session``; then each ``note``, and each ``ask`` that is ``waiting``
    * ``speaker``: ``text`` is the agent, ``facts`` its model
    * ``prompt``: ``text``, ``facts``, ``of`` a ``Prompt``; ``answer``: ``text`` in Markdown
    * ``aside``: ``text``; ``facts`` is ``reasoning`` or ``summary``
    * ``notice``: ``text``, ``of`` a ``Notice``; ``end``: ``text``; ``facts`` is the outcome of the turn
    * ``ask``: ``facts`` is the answer, ``text`` what was asked, empty if that is above; ``of`` an ``Ask``
    * ``call``: ``text`` is what was asked of the tool, ``of`` a ``Call``; the ``parts`` are of the kinds ``ask``,
      ``given`` (the whole input), ``output``, ``diff`` (``facts`` if the call changed several files, ``of`` a
      ``Diff``), ``below`` (its ``parts`` are the turns of a child session) and ``result`` (what the child answered;
      ``facts`` is its agent)
    """

    kind: Kind
    text: str = ""
    facts: str = ""
    of: Any = None
    parts: tuple[Piece, ...] = ()


def pieces(roots: list[Session], reading: Reading, *, opens: bool = False) -> Iterator[Piece]:
    """Everything that is shown. With ``opens``, a reader of the layout can open and close a child session, so the turns
    of each are there even without ``reading.children``."""
    for session in roots:
        yield Piece("title", session.name or session.title or "(no title)", words.facts_of(session), session)
        yield from (Piece("note", note) for note in reading.notes)
        for ask in words.waiting_in(session.turns):
            yield _ask(ask, reading)._replace(kind="waiting")
        yield from turn_pieces(session.turns, session.directory, reading, opens=opens)


def turn_pieces(turns: list[Turn], directory: str, reading: Reading, *, opens: bool) -> Iterator[Piece]:
    """What is shown of these turns, of a session that ran in ``directory``."""
    for turn in turns:
        is_said = False
        items, later = words.split_at_end(turn)
        for item in items:
            if not isinstance(item, Prompt) and not is_said and turn.agent:
                is_said = True
                yield Piece("speaker", turn.agent, words.turn_facts(turn))
            yield from _item(item, directory, reading, opens)
        if end := words.turn_end(turn):
            yield Piece("end", end, turn.outcome)
        for item in later:
            yield from _item(item, directory, reading, opens)


def _item(item: Item, directory: str, reading: Reading, opens: bool) -> Iterator[Piece]:
    if isinstance(item, Prompt):
        yield Piece("prompt", words.prompt_text(item), words.prompt_facts(item), item)
    elif isinstance(item, Said):
        yield Piece("answer", item.text, of=item) if item.kind == "answer" else Piece("aside", item.text, item.kind)
    elif isinstance(item, Call):
        parts = tuple(_parts(item, directory, reading, opens))
        yield Piece("call", words.call_text(item, directory), of=item, parts=parts)
    elif isinstance(item, Ask):
        yield _ask(item, reading)
    elif item.what != "other" or reading.full:
        yield Piece("notice", words.notice_text(item), of=item)


def _parts(call: Call, directory: str, reading: Reading, opens: bool) -> Iterator[Piece]:
    yield from (_ask(ask, reading, is_above=words.is_about(ask, call)) for ask in call.asks)
    if reading.full and (given := words.call_input(call)):
        yield Piece("given", given)
    yield Piece("output", words.call_output(call, full=reading.full))
    for diff in call.diffs:
        yield Piece("diff", diff.patch, words.diff_facts(diff) if len(call.diffs) > 1 else "", diff)
    child = call.child
    turns = child.turns if child is not None else []
    if child is not None and turns and (reading.children or opens):
        yield Piece(
            "below", child.title or "child session", parts=tuple(turn_pieces(turns, directory, reading, opens=opens))
        )
    else:
        yield from (_ask(ask, reading) for ask in asks_below(turns))
    if call.tool == "task" and not (turns and reading.children) and (result := words.call_result(call)):
        yield Piece("result", result, child.agent if child is not None else "")


def _ask(ask: Ask, reading: Reading, *, is_above: bool = False) -> Piece:
    asked = "" if is_above and ask.state != "waiting" else words.asked_text(ask)
    return Piece("ask", asked, answer_text(ask, reading.now_ms), ask)
