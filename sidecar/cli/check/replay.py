"""``replay``: run an agent again on its recorded inputs, and compare the results with the log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sidecar.cli.shared.arguments import StreamArgument
from sidecar.cli.shared.command import RUNS, Run
from sidecar.failure import Failure

if RUNS:
    from sidecar.agents.agent import Agent
    from sidecar.agents.checks.replay import replay as replayed
    from sidecar.agents.loading import LoadError, UserAgent, load_agents
    from sidecar.background.intents.intents import NAME as INTENTS
    from sidecar.background.intents.intents import IntentAgent
    from sidecar.cli.shared.team import team_log
    from sidecar.config import load_config
    from sidecar.read.find_by_id import find_stream, open_reader
    from streams.log.reader import LogReader

AGENT = "agent/"


async def replay(
    run: Run,
    stream: StreamArgument,
    agent: Annotated[
        list[str] | None,
        typer.Option("--agent", metavar="MODULE:ATTR", help="Load this agent instead of those in [worker]."),
    ] = None,
) -> int:
    """Run an agent again on its recorded inputs and compare the results.

    Compares the agent's outputs, its state after each input, and its snapshot with the log, and shows the first
    difference. Runs no effects and changes nothing.
    """
    with team_log(run.home) as shared:
        return await _replay(run, stream, agent, shared)


async def _replay(run: Run, stream: str, agent: list[str] | None, shared: LogReader | None) -> int:
    """``shared``: the log of the team's agents, which comes first."""
    out, home = run.out, run.home
    reader = open_reader(home.store_path)
    if shared is not None and [1 async for _ in shared.read(_stream_of(stream))][:1]:
        reader = shared
    found = await find_stream(reader, stream)
    name = found.removeprefix(AGENT).removesuffix("/effects")
    if not found.startswith(AGENT):
        raise Failure(
            "no-agent-stream",
            f"{found} is not the stream of an agent, so there is nothing to run again; only streams named agent/NAME "
            f"can be replayed. `durable-stream log {found}` shows what is in it",
        )
    config = load_config(home.config_path)
    if name == INTENTS and not agent:
        one: Agent = IntentAgent(config.phantom)
    else:
        one = _agent(name, agent or list(config.worker.agents), home.path)
    result = await replayed(reader, one)
    difference = result.difference
    if out.json:
        out.object(result.as_json())
    elif difference is None:
        snapshot = ", and so is its snapshot" if result.snapshot == "equal" else ""
        out.text(
            f"agent/{name}: {result.inputs} inputs replayed; every output and state is as recorded{snapshot}", "green"
        )
    else:
        out.text(f"agent/{name}, offset {difference.offset}: {difference.what}", "bold red")
        out.prose("recorded  ", difference.recorded)
        out.prose("replayed  ", difference.replayed)
    return 0 if difference is None else 1


def _stream_of(stream: str) -> str:
    return stream if stream.startswith(AGENT) else f"{AGENT}{stream}"


def _agent(name: str, specs: list[str], base: Path) -> UserAgent:
    broken = ""
    for spec in specs:
        try:
            (one,) = load_agents([spec], base)
        except LoadError as error:
            broken = f"; {error}"
            continue
        if one.name == name:
            return one
    raise Failure(
        "unknown-agent",
        f"no agent is named {name} here{broken}; name it with `--agent MODULE:ATTR`, or in `agents` in [worker] in "
        "config.toml",
    )
