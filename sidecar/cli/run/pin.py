"""``pin``, ``unpin`` and ``name``: what a person says about a session, recorded in its stream."""

from __future__ import annotations

from typing import Annotated

import typer

from sidecar.cli.shared.arguments import SessionArgument
from sidecar.cli.shared.command import RUNS, Run

if RUNS:
    from sidecar.cli.shared.control import ask
    from sidecar.read.find_by_id import find_session, open_reader
    from streams.lineage import MAX_NAME


async def pin(run: Run, stream: SessionArgument) -> None:
    """Keep a session: `prune` spares it, whatever its age and size, until `unpin`."""
    await _mark(run, stream, "pinned", "{} is pinned, so `prune` spares it")


async def unpin(run: Run, stream: SessionArgument) -> None:
    """Take a pin away, so that `prune` may remove the session again."""
    await _mark(run, stream, "unpinned", "{} is not pinned any more, so `prune` may remove it")


async def name(
    run: Run,
    stream: SessionArgument,
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="Its name, of up to 200 characters; an empty text takes it away.")
    ],
) -> None:
    """Give a session a name, which every list shows instead of OpenCode's title."""
    if len(text) > MAX_NAME:
        raise typer.BadParameter(f"a name has at most {MAX_NAME} characters", param_hint="TEXT")
    await _mark(run, stream, "named", "{} is named" if text else "{} has only its title again", text)


async def _mark(run: Run, given: str, mark: str, sentence: str, text: str = "") -> None:
    stream, _ = await find_session(open_reader(run.own_home.store_path), given)
    asked = {"stream": stream, "mark": mark, "name": text}
    found = await ask(run.home, "mark", asked, "it is safe to run the same command again")
    run.out.result(found, f"{sentence.format(stream)}: {found['title'] or '(no title)'}")
