"""``tree``: shows sessions and turns, with their results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sidecar.cli.shared.arguments import OptionalFamily, limit_option
from sidecar.cli.shared.command import JsonFlag, home_of, note
from sidecar.cli.shared.project import ProjectOption

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rich.tree import Tree

    from sidecar.cli.printing.output import Output
    from sidecar.read.catalog import SessionView
    from sidecar.read.overview import Overview, TurnView
    from streams.errors import CorruptLog
    from streams.log.reader import LogReader
    from streams.store import Record


async def tree(
    context: typer.Context,
    stream: OptionalFamily = None,
    limit: Annotated[int | None, limit_option("root sessions")] = None,
    project: ProjectOption = None,
    json: JsonFlag = False,
) -> None:
    """Show sessions and turns, with their results."""
    from sidecar.cli.printing.output import Output
    from sidecar.cli.shared.project import NOTHING_THERE, project_or_here
    from sidecar.read.select import catalog_of, empty_text, family_of, find_session, open_reader, records_of

    out = Output(json)
    reader = open_reader(home_of(context).store_path)
    if stream is None:
        chosen = project_or_here((await catalog_of(reader))[0], project, stream)
        printed = await _whole_tree(out, reader, limit, chosen)
        if not printed and chosen is not None:
            note(NOTHING_THERE.format(project))
            return
    else:
        stream, session = await find_session(reader, stream)
        overview, fault = await _overview(records_of(reader, await family_of(reader, stream)))
        roots = overview.roots() if session is None else [overview.sessions[session]]
        printed = _print_roots(out, overview, roots[-limit:] if limit else roots)
        if fault is not None:
            raise fault
    if printed:
        return
    if stream is not None:
        note(f"{stream} holds no session.")
    elif (await catalog_of(reader))[0].streams:
        note("No session was recorded, or all were forgotten; `durable-stream streams --all` lists every stream.")
    else:
        note(f"No sessions: {empty_text(reader)}.")


async def _overview(records: AsyncIterator[Record]) -> tuple[Overview, CorruptLog | None]:
    """Fold ``records`` into an overview; also return the fault that ended reading early, if any."""
    from sidecar.read.overview import Overview
    from streams.errors import CorruptLog

    overview = Overview()
    try:
        async for record in records:
            overview.apply(record)
    except CorruptLog as error:
        return overview, error
    return overview, None


async def _whole_tree(out: Output, reader: LogReader, limit: int | None, chosen: set[str] | None) -> int:
    """Print every session, or the newest ``limit`` roots and their descendants. Returns the number of roots.

    ``chosen`` are the streams to print; ``None`` for all.

    If the log has an index of a stream's records, sessions are read and printed one family (a root session with its
    descendants) at a time. So the first family appears at once, and even a long log needs little memory.
    """
    from sidecar.read.select import catalog_of
    from streams.query import Filter

    if not reader.is_indexed:
        overview, fault = await _overview(reader.read_all())
        roots = [root for root in overview.roots() if chosen is None or root.stream in chosen]
        printed = _print_roots(out, overview, roots[-limit:] if limit else roots)
        if fault is not None:
            raise fault
        return printed
    catalog, fault = await catalog_of(reader)
    heads = [root for root in catalog.roots() if chosen is None or root.stream in chosen]
    for root in heads[-limit:] if limit else heads:
        streams = tuple(catalog.lineage.streams_of(root.id))
        overview, torn = await _overview(reader.query(Filter(streams=streams)))
        _print_roots(out, overview, [overview.sessions[root.id]] if root.id in overview.sessions else [])
        fault = fault or torn
    if fault is not None:
        raise fault
    return len(heads)


def _print_roots(out: Output, overview: Overview, roots: list[SessionView]) -> int:
    for root in roots:
        if out.json:
            out.object(overview.session_json(root))
        elif out.terminal:
            from rich.tree import Tree

            top = Tree(_session_label(overview, root, out.width), guide_style="dim")
            _grow(overview, root, top, out.width)
            out.console.print(top, no_wrap=True, overflow="ellipsis", crop=True)
        else:
            _plain(out, overview, root, 0)
    return len(roots)


def _grow(overview: Overview, session: SessionView, node: Tree, width: int) -> None:
    for turn, below in _branches(overview, session):
        inner = node if turn is None else node.add(_turn_label(turn, _now(session, turn), width))
        for child in below:
            _grow(overview, child, inner.add(_session_label(overview, child, width)), width)


def _plain(out: Output, overview: Overview, session: SessionView, depth: int) -> None:
    from sidecar.read.wording import one_line

    indent = "  " * depth
    marks = "".join(f" [{mark}]" for mark in _marks(overview, session))
    out.text(indent + one_line(f"session {session.id} {session.agent} {session.title}{marks}"))
    for turn, below in _branches(overview, session):
        if turn is not None:
            told = f"turn {turn.outcome or 'open'} {_figures(turn)} {_now(session, turn)}{turn.asked}"
            out.text(f"{indent}  " + one_line(told))
        for child in below:
            _plain(out, overview, child, depth + (1 if turn is None else 2))


def _branches(overview: Overview, session: SessionView) -> list[tuple[TurnView | None, list[SessionView]]]:
    """The session's turns, each with the sessions that the turn started; at the end, child sessions of unknown
    origin."""
    below = {child.id: child for child in overview.children(session.id)}
    branches: list[tuple[TurnView | None, list[SessionView]]] = [
        (turn, [below.pop(child) for child in turn.spawned if child in below]) for turn in overview.turns(session.id)
    ]
    return [*branches, (None, list(below.values()))]


def _marks(overview: Overview, session: SessionView) -> list[str]:
    """What is particular about a session."""
    from sidecar.read.host_agents import LABEL

    fork = overview.fork(session.id)
    marks = (session.ended, f"{LABEL} background agent" if session.is_background else "", fork and f"fork of {fork}")
    return [mark for mark in marks if mark]


def _session_label(overview: Overview, session: SessionView, width: int) -> Any:
    from rich.text import Text

    from sidecar.cli.printing.output import WHOLE_ID_WIDTH, shortened
    from sidecar.read.wording import one_line

    label = Text(no_wrap=True, overflow="ellipsis")
    label.append(one_line(session.title) or "(no title)", "bold")
    label.append(f"  {one_line(session.agent)}" if session.agent else "")
    name = one_line(session.id)
    label.append(f"  {name if width >= WHOLE_ID_WIDTH else shortened(name)}", "dim")
    for mark in _marks(overview, session):
        label.append(f"  {one_line(mark)}", "dim")
    return label


def _turn_label(turn: TurnView, now: str, width: int) -> Any:
    from rich.text import Text

    from sidecar.cli.printing.output import WHOLE_ID_WIDTH
    from sidecar.read.describe import spent
    from sidecar.read.wording import one_line

    style = {"completed": "green", "failed": "red", None: "bold green"}.get(turn.outcome, "yellow")
    label = Text(no_wrap=True, overflow="ellipsis")
    label.append(one_line(turn.outcome or "open"), style)
    tokens = spent({"tokens": turn.tokens}) if width >= WHOLE_ID_WIDTH else ""
    label.append("  " + " · ".join(filter(None, (_figures(turn), tokens))), "dim")
    label.append(f"  {now}", "bold green")
    label.append(one_line(turn.asked or turn.trigger))
    return label


def _now(session: SessionView, turn: TurnView) -> str:
    """What the session's open turn waits for or runs, and since when."""
    from sidecar.read.wording import local_time, one_line

    if turn.outcome is not None or turn.message != session.turn or not session.is_active:
        return ""
    if session.asks:
        return "waiting for you · "
    return "".join(f"runs {one_line(c.text)} since {local_time(c.since_ms, '%H:%M:%S')} · " for c in session.running)


def _figures(turn: TurnView) -> str:
    from sidecar.read.wording import lasted, money

    figures = [f"{turn.steps} step{'' if turn.steps == 1 else 's'}"]
    if turn.duration_ms is not None:
        figures.append(lasted(turn.duration_ms))
    if turn.cost:
        figures.append(money(turn.cost))
    return " · ".join(figures)
