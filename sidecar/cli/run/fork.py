"""``fork``: make a new session from a moment of another one, after a confirmation."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from sidecar.cli.shared import complete
from sidecar.cli.shared.arguments import SessionArgument
from sidecar.cli.shared.command import RUNS, Run, note
from sidecar.failure import Failure

if RUNS:
    from sidecar.cli.shared.control import ask
    from sidecar.read.wording import one_line


async def fork(
    run: Run,
    stream: SessionArgument,
    at: Annotated[
        str,
        typer.Option(
            "--at",
            metavar="EVENT",
            help="The event at which the fork ends: after an answer, or before a prompt.",
            autocompletion=complete.events,
        ),
    ],
    prompt: Annotated[
        str | None, typer.Option("--prompt", help="The first prompt in the fork; else nothing runs.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Make a new session from a moment of another one, in an open OpenCode.

    The fork has the conversation up to the message of EVENT: after an answer, but before a prompt, so that you can ask
    something else. Nothing runs unless you give a prompt, and files stay as they are now. If OpenCode no longer has the
    session or the message, a new session gets the recorded conversation as a text.
    """
    out, home = run.out, run.home
    if not yes and (out.json or not sys.stdin.isatty()):
        raise Failure("not-confirmed", "nothing was forked, because nobody was asked; confirm it with `--yes`")
    given: dict[str, Any] = {"stream": stream, "event": at, "prompt": prompt}
    retry = "`durable-stream streams` shows whether the fork exists; running the command again makes another"
    if not yes:
        plan = await ask(home, "fork", {**given, "preview": True}, "nothing was forked")
        runs = "Your prompt runs there, and may do what your OpenCode allows." if prompt else "Nothing runs there."
        out.prose("", one_line(f"{plan['text']} {runs}"))
        out.flush()
        if not typer.confirm("Fork it?"):
            note("Nothing was forked.")
            return
    found = await ask(home, "fork", given, retry)
    if found["messages"] is None:
        note(found["text"])
    out.result(found, f"{found['fork']}  fork of {found['session']}")
