"""``spawn``: start background work from the command line."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import typer

from sidecar.cli.shared.command import RUNS, Run, note
from sidecar.cli.shared.machines import OnOption, request
from sidecar.failure import Failure

if RUNS:
    import asyncio
    import os
    from math import isfinite

    from sidecar.agents.inputs import agent_stream, is_applied
    from sidecar.background.intents.intents import NAME
    from sidecar.background.intents.lifecycle import ENDED
    from sidecar.background.intents.rows import as_row
    from sidecar.background.intents.state import Intent, State
    from sidecar.cli.shared.control import control
    from sidecar.cli.shared.follow import follow
    from sidecar.cli.shared.terminal import terminal
    from sidecar.home import Home
    from sidecar.read.find_by_id import open_reader
    from sidecar.read.wording import visible


async def spawn(
    run: Run,
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="The prompt; include everything the background agent needs to know.")
    ],
    title: Annotated[
        str, typer.Option("--title", metavar="TEXT", help="A short title; default: the prompt's first words.")
    ] = "",
    directory: Annotated[
        Path | None,
        typer.Option("--directory", metavar="DIR", help="The project's directory; default: the current directory."),
    ] = None,
    parent: Annotated[
        str | None, typer.Option("--parent", metavar="SESSION", help="The session that gets the result.")
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option(
            "--agent", metavar="AGENT", help="The OpenCode agent to run; default: OpenCode's own, usually build."
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", metavar="PROVIDER/MODEL", help="The model to use; repeat the option to add fallbacks."),
    ] = None,
    minutes: Annotated[
        float,
        typer.Option(
            "--minutes",
            metavar="N",
            min=0.1,
            max=1440,
            help="Stop the work after it has run for this many minutes. Waiting for your answer does not count.",
        ),
    ] = 60,
    tokens: Annotated[
        int, typer.Option("--tokens", metavar="N", min=0, help="Stop the work once it has used this many tokens.")
    ] = 0,
    cost: Annotated[
        float, typer.Option("--cost", metavar="N", min=0, help="Stop the work once it has cost this many dollars.")
    ] = 0.0,
    isolation: Annotated[
        str | None,
        typer.Option(
            "--isolation",
            metavar="WHERE",
            help="auto: edit a copy if the project is a git repository, otherwise your files. copy: always edit a "
            "copy; refuse to start if that is impossible. shared: always edit your files.",
        ),
    ] = None,
    continues: Annotated[
        str | None,
        typer.Option(
            "--continue",
            metavar="INTENT",
            help="Go on with this ended intent: same session, copy, agent and parent.",
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
    wait: Annotated[
        float | None,
        typer.Option(
            "--wait",
            min=0,
            metavar="[=SECONDS]",
            help="Wait for the end, or at most so long, and print the result. Ctrl-C ends only the waiting.",
        ),
    ] = None,
    on: OnOption = None,
) -> None:
    """Start background work that keeps going even if OpenCode or the sidecar restarts.

    Returns at once. With --wait, the exit code is 1 if the work fails, and stderr says why; 0 if it
    has not ended by then, and the last line says so.

    With --on, --directory names a directory of that machine, and the result comes back here.
    """
    if not prompt.strip():
        raise typer.BadParameter("the prompt is empty")
    out = run.out
    if on is not None:
        if continues is not None or wait is not None:
            raise typer.BadParameter("`--continue` and `--wait` work on this machine only: leave out `--on`")
        if directory is None:
            raise typer.BadParameter("name the project's directory on that machine with `--directory`")
        asked: dict[str, Any] = {"prompt": prompt, "title": title, "directory": str(directory), "agent": agent}
        asked |= {"models": model or [], "minutes": minutes, "tokens": tokens, "cost": cost, "isolation": isolation}
        row = await request(run, on, "spawn", asked, key=key, session=parent)
        if row is not None:
            out.result(row, f"{row['id']}  {row['state']}  {row['title']}  on {on}")
        return
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
        "variables": dict(os.environ),
    }
    home = run.home
    async with control(home, "it is safe to run the same command again with the same `--key`") as client:
        if parent is None and continues is None:
            given["terminal"] = await terminal(home, client, where)
        found = dict(await client.request("spawn", given))
    if wait is not None:
        note(f"{found['id']} goes on also if this command ends; waiting for its end.")
        intent = await _watched(home, found["id"], wait)
        found = found if intent is None else as_row(intent)
    if out.json:
        out.object(found)
    elif wait is None or found["state"] != "completed":
        out.text(f"{found['id']}  {found['state']}  {found['title']}")
    else:
        out.text(visible(found["result"] or "It gave no answer."))
        if found["changes"].get("saved"):
            note(f"It changed files in its own copy; `durable-stream intents {found['id']}` shows them.")
    ended = f"{found['id']} {found['state']}: {visible(found['reason'])}"
    if found["state"] == "failed":
        raise Failure("work-failed", ended)
    if found["state"] == "cancelled":
        raise Failure("work-cancelled", ended)


async def _watched(home: Home, identifier: str, wait: float) -> Intent | None:
    """The intent once it has ended, or after ``wait`` seconds. ``None`` if the log does not show it by then."""
    state, announced = State(), set[str]()
    try:
        async with asyncio.timeout(wait if isfinite(wait) else None):
            async for _ in _states(home, state):
                intent = state.intents.get(identifier)
                if intent is not None and intent.state in ENDED:
                    break
                for checkpoint in [
                    each for each in (intent.asks if intent is not None else ()) if each not in announced
                ]:
                    announced.add(checkpoint)
                    note(f"It waits for you: `durable-stream checkpoints {checkpoint}` shows and answers the question.")
    except TimeoutError:
        note("It has not ended so far. `durable-stream top` shows how it goes on.")
    return state.intents.get(identifier)


async def _states(home: Home, state: State) -> AsyncIterator[None]:
    """Fold the past of all intents into ``state``, then each new record; yield after each change, without end."""
    reader, stream = open_reader(home.store_path), agent_stream(NAME)
    head = reader.head
    async for record in reader.read(stream):
        if record.position <= head and is_applied(record.event):
            state.fold(record.event.type, record.event.payload)
    yield
    async for record in follow(home.store_path, after=head):
        if record.event.stream_id == stream and is_applied(record.event):
            state.fold(record.event.type, record.event.payload)
            yield
