"""``tree``: shows sessions and turns, with their results."""

from __future__ import annotations

from typing import Annotated, Any

from sidecar.cli.shared.arguments import OptionalFamily, limit_option
from sidecar.cli.shared.command import RUNS, Run
from sidecar.cli.shared.project import ProjectOption

if RUNS:
    from sidecar.cli.printing.output import WHOLE_ID_WIDTH, Output, shortened
    from sidecar.cli.shared.project import NOTHING_THERE, project_or_here
    from sidecar.read.find_by_id import catalog_of, empty_text, family_of, find_session
    from sidecar.read.host_agents import LABEL
    from sidecar.read.kinds import is_agents
    from sidecar.read.rendering.describe import spent
    from sidecar.read.story.catalog import Catalog
    from sidecar.read.story.moment import Moment
    from sidecar.read.story.reading import Snapshot, ask
    from sidecar.read.transcript.model import Turn
    from sidecar.read.tree import Tree
    from sidecar.read.views import SessionView
    from sidecar.read.wording import counted, lasted, local_time, money, one_line
    from streams.log.reader import LogReader


async def tree(
    run: Run,
    stream: OptionalFamily = None,
    limit: Annotated[int | None, limit_option("root sessions")] = None,
    project: ProjectOption = None,
) -> None:
    """Show sessions and turns, with their results."""
    out, reader = run.out, run.reader
    catalog, _ = await catalog_of(reader)
    session = None
    if stream is None:
        chosen = project_or_here(catalog, project, stream)
    else:
        stream, session = await find_session(reader, stream)
        chosen = (await family_of(reader, stream)).streams
    if session is not None:
        printed = [catalog.sessions[session]]
    elif stream is not None:
        known = [catalog.sessions[name] for name in catalog.sessions_of(chosen or ())]
        printed = [each for each in known if catalog.root(each.id) == each.id]
    else:
        roots = [root for root in catalog.roots() if chosen is None or root.stream in chosen]
        printed = roots[-limit:] if limit else roots
    await _print(out, reader, catalog, printed)
    if printed:
        return
    if stream is not None:
        run.nothing(f"{stream} holds no session.")
    elif chosen is not None:
        run.nothing(NOTHING_THERE.format(project))
    elif not all(map(is_agents, catalog.streams)):
        run.nothing(
            "No session was recorded, or all were forgotten; `durable-stream streams --all` lists every stream."
        )
    else:
        run.nothing(f"No sessions: {await empty_text(reader)}.")


async def _print(out: Output, reader: LogReader, catalog: Catalog, roots: list[SessionView]) -> None:
    """Print some sessions and their descendants."""

    def turns_of(story: Snapshot) -> dict[str, list[Turn]]:
        streams = {stream for root in roots for stream in catalog.streams_of(root.id)}
        moment = Moment(story, streams, story.head)
        return {row.name: moment.turns(key) for key, row in moment.sessions.items()}

    tree = Tree(catalog, await ask(reader, turns_of) if roots else {})
    for root in roots:
        _print_root(out, tree, root)


def _print_root(out: Output, tree: Tree, root: SessionView) -> None:
    if out.json:
        out.object(tree.as_json(root))
    elif out.terminal:
        from rich.tree import Tree as Shown

        top = Shown(_session_label(root, out.width), guide_style="dim")
        _grow(tree, root, top, out.width)
        out.console.print(top, no_wrap=True, overflow="ellipsis", crop=True)
    else:
        _plain(out, tree, root, 0)


def _grow(tree: Tree, session: SessionView, node: Any, width: int) -> None:
    for turn, below in tree.branches(session):
        inner = node if turn is None else node.add(_turn_label(turn, _now(session, turn), width))
        for child in below:
            _grow(tree, child, inner.add(_session_label(child, width)), width)


def _plain(out: Output, tree: Tree, session: SessionView, depth: int) -> None:
    indent = "  " * depth
    marks = "".join(f" [{mark}]" for mark in _marks(session))
    out.text(indent + one_line(f"session {session.id} {session.agent} {session.title}{marks}"))
    for turn, below in tree.branches(session):
        if turn is not None:
            line = f"turn {_ended(turn)} {_figures(turn)} {_now(session, turn)}{turn.asked}"
            out.text(f"{indent}  " + one_line(line))
        for child in below:
            _plain(out, tree, child, depth + (1 if turn is None else 2))


def _marks(session: SessionView) -> list[str]:
    """What is particular about a session."""
    background = f"{LABEL} background agent" if session.is_background else ""
    pinned = "pinned" * session.pinned
    return [mark for mark in (pinned, session.ended, background, session.fork and f"fork of {session.fork}") if mark]


def _session_label(session: SessionView, width: int) -> Any:
    from rich.text import Text

    label = Text(no_wrap=True, overflow="ellipsis")
    label.append(one_line(session.title) or "(no title)", "bold")
    label.append(f"  {one_line(session.agent)}" if session.agent else "")
    name = one_line(session.id)
    label.append(f"  {name if width >= WHOLE_ID_WIDTH else shortened(name)}", "dim")
    for mark in _marks(session):
        label.append(f"  {one_line(mark)}", "dim")
    return label


def _turn_label(turn: Turn, now: str, width: int) -> Any:
    from rich.text import Text

    style = {"completed": "green", "failed": "red", "": "bold green"}.get(turn.outcome, "yellow")
    label = Text(no_wrap=True, overflow="ellipsis")
    label.append(one_line(_ended(turn)), style)
    tokens = spent({"tokens": turn.tokens}) if width >= WHOLE_ID_WIDTH else ""
    label.append("  " + " · ".join(filter(None, (_figures(turn), tokens))), "dim")
    label.append(f"  {now}", "bold green")
    label.append(one_line(turn.asked or turn.trigger))
    return label


def _ended(turn: Turn) -> str:
    """How the turn ended, and its error, which a turn that completed has if only its compaction failed."""
    return f"{turn.outcome} ({turn.error})" if turn.error else turn.outcome or "open"


def _now(session: SessionView, turn: Turn) -> str:
    """What the session's open turn waits for or runs, and since when."""
    if turn.outcome or turn.message != session.turn or not session.is_active:
        return ""
    if session.asks:
        return "waiting for you · "
    if session.retries:
        return f"{one_line(session.retries)} · "
    return "".join(f"runs {one_line(c.text)} since {local_time(c.since_ms, '%H:%M:%S')} · " for c in session.running)


def _figures(turn: Turn) -> str:
    figures = [counted(turn.steps, "step")]
    if turn.duration_ms is not None:
        figures.append(lasted(turn.duration_ms))
    if turn.cost:
        figures.append(money(turn.cost))
    return " · ".join(figures)
