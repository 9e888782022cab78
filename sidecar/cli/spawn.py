"""``spawn``: start background work from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sidecar.cli.shared.command import JsonFlag, home_of


async def spawn(
    context: typer.Context,
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="The prompt; include everything the background agent needs to know.")
    ],
    title: Annotated[str, typer.Option("--title", help="A short title; default: the first words of the prompt.")] = "",
    directory: Annotated[
        Path | None,
        typer.Option("--directory", metavar="DIR", help="The project's directory; default: the current directory."),
    ] = None,
    parent: Annotated[
        str | None, typer.Option("--parent", metavar="SESSION", help="The session that gets the result.")
    ] = None,
    agent: Annotated[
        str | None, typer.Option("--agent", help="The OpenCode agent to run; default: OpenCode's own, usually build.")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", metavar="PROVIDER/MODEL", help="The model to use; repeat the option to add fallbacks."),
    ] = None,
    minutes: Annotated[
        float,
        typer.Option(
            "--minutes",
            min=0.1,
            max=1440,
            help="Stop the work after it has run for this many minutes. Waiting for your answer does not count.",
        ),
    ] = 60,
    tokens: Annotated[
        int, typer.Option("--tokens", min=0, help="Stop the work once it has used this many tokens.")
    ] = 0,
    cost: Annotated[
        float, typer.Option("--cost", min=0, help="Stop the work once it has cost this many dollars.")
    ] = 0.0,
    isolation: Annotated[
        str | None,
        typer.Option(
            "--isolation",
            metavar="WHERE",
            help="auto: edit a copy if the project is a git repository, otherwise your files. worktree: always edit a "
            "copy; refuse to start if that is impossible. shared: always edit your files.",
        ),
    ] = None,
    continues: Annotated[
        str | None,
        typer.Option(
            "--continue",
            metavar="INTENT",
            help="Go on with this ended intent: same session, worktree, agent and parent.",
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            help="Idempotency key: repeating the command with the same key does not start the work again; a key "
            "already used for different work is refused.",
        ),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Start background work that keeps going even if OpenCode or the sidecar restarts."""
    from sidecar.cli.shared.control import ask
    from sidecar.cli.shared.output import Output

    out = Output(json)
    where = (directory or Path.cwd()).expanduser().resolve()
    given: dict[str, Any] = {
        "prompt": prompt,
        "title": title,
        "directory": str(where),
        "parent": parent,
        "agent": agent,
        "models": model or [],
        "minutes": minutes,
        "tokens": tokens,
        "cost": cost,
        "isolation": isolation,
        "continues": continues,
        "key": key,
    }
    found = await ask(
        home_of(context), "spawn", given, "it is safe to run the same command again with the same `--key`"
    )
    if json:
        out.object(found)
    else:
        out.text(f"{found['id']}  {found['state']}  {found['title']}")
