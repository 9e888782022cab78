"""``agents`` lists the agents that run in the sidecar, or checks an agent; ``send`` sends an agent a command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sidecar.cli.shared.command import RUNS, Run, note
from sidecar.failure import Failure

if RUNS:
    import json as reading
    from collections import deque

    from sidecar.cli.printing.output import Column, Output
    from sidecar.cli.shared.control import ask
    from sidecar.cli.shared.team import team_log
    from sidecar.home import Home
    from sidecar.read.find_by_id import open_reader
    from sidecar.read.wording import amount, counted
    from streams.event import StreamEvent
    from streams.identity import seeded_identity
    from streams.query import Filter

_CUT_OFF = "it is safe to run the same command again with the same `--key`"


CHECKED_EVENTS = 1000
"""How many of the newest recorded events ``--check`` gives to an agent."""


async def agents(
    run: Run,
    check: Annotated[
        str | None,
        typer.Option(
            "--check",
            metavar="MODULE:ATTR",
            help="Instead of listing agents, check that this one keeps the contract and repeats itself.",
        ),
    ] = None,
    events: Annotated[
        Path | None,
        typer.Option(
            "--events",
            metavar="FILE",
            help="With --check: a file of events to try the agent with, one JSON object per line.",
        ),
    ] = None,
    claim: Annotated[
        str | None,
        typer.Option(
            "--claim", metavar="NAME", help="Instead of listing agents, take this one from the home that owns it."
        ),
    ] = None,
) -> int:
    """List the agents that run in the sidecar, with health, lag, and why one is not ready.

    Agents run only while a sidecar is running; this command starts none. Exits with 1 if an agent failed or could
    not be loaded.

    With --check, checks that one agent keeps the contract, and that two processes come to the same results for the
    same events. The sidecar is not asked. Uses the newest 1000 events that the agent would receive from the log, or
    the events in the file given with --events. Exits with 1 if the check finds a violation.

    With --claim, takes an agent from another home on the same NATS server, for example because that home is gone. What
    the agent did there stays there. If that home still runs, the command in hand may be done twice.
    """
    out = run.out
    if claim is not None:
        owned = await ask(run.home, "agent_claim", {"agent": claim}, "it is safe to run the same command again")
        out.result(owned, f"This home owns the agent {claim} now.")
        return 0
    if check is not None:
        return await _check(out, run.home, check, events)
    home = run.home
    runs = home.running() is not None
    found = await ask(home, "agents", {}, "nothing was changed") if runs else {"agents": [], "problems": []}
    failed = bool(found["problems"]) or any(row["health"] == "FAILED" for row in found["agents"])
    if out.json:
        out.object(found)
    elif not runs:
        note("No sidecar is running, so no agent is. OpenCode starts the sidecar, or run `durable-stream serve`.")
    else:
        _table(out, found["agents"])
        for problem in found["problems"]:
            note(f"{problem['spec']} cannot be loaded: {problem['reason']}.")
    return 1 if failed else 0


def _table(out: Output, rows: list[dict[str, Any]]) -> None:
    names = ("agent", "health", "handled", "lag", "effects", "in doubt", "dead")
    columns = [Column(name, right=number > 1) for number, name in enumerate(names)]
    out.table(
        (*columns, Column("why")),
        [
            (
                row["name"],
                row["health"],
                *(amount(row[name]) for name in ("handled", "lag", "effects", "in_doubt", "dead")),
                "; ".join(row["reasons"]) or row["last_error"] or "-",
            )
            for row in rows
        ],
    )


async def _check(out: Output, home: Home, spec: str, file: Path | None) -> int:
    from sidecar.agents.checks.contract import check_agent
    from sidecar.agents.loading import LoadError, load_agents

    try:
        (agent,) = load_agents([spec], home.path)
        events = await _wanted(home, agent) if file is None else _events_of(file)
        findings = await check_agent(spec, home.path, events)
    except LoadError as error:
        raise Failure("bad-agent", str(error)) from None
    if out.json:
        shown = [finding._asdict() for finding in findings]
        out.object({"agent": agent.name, "events": len(events), "findings": shown})
        return 1 if findings else 0
    for finding in findings:
        out.text(str(finding), "red")
    if not findings:
        out.text(f"agent {agent.name}: two processes came to the same results for {len(events)} events", "green")
    if not events:
        note("There were no events to try the agent with; give some with --events FILE.")
    return 1 if findings else 0


async def _wanted(home: Home, agent: Any) -> list[Any]:
    """The newest events of the log that the agent would get, including commands to the agent and results of its
    effects."""
    from sidecar.agents.inputs import RECEIVED, agent_stream, effects_stream
    from sidecar.agents.receivers import wants

    own = agent_stream(agent.name)
    found: deque[Any] = deque(maxlen=CHECKED_EVENTS)
    own_log = open_reader(home.store_path)
    with team_log(home) as shared:
        reader = shared or own_log
        filters = [Filter(streams=(own, effects_stream(agent.name)))]
        filters += [Filter(types=tuple(agent.events))] if agent.events else []
        for wanted in filters:
            async for record in reader.query(wanted):
                event = record.event
                is_command = event.stream_id == own and event.metadata.get("role") == "input"
                if (is_command and event.type != RECEIVED) or wants(agent, event):
                    found.append(event)
    await own_log.close()
    return list(found)


def _events_of(file: Path) -> list[StreamEvent]:
    from sidecar.agents.checks.contract import as_event

    found = []
    identity = seeded_identity(0)
    for number, line in enumerate(file.read_text().splitlines(), 1):
        try:
            given = reading.loads(line) if line.strip() else None
        except ValueError as error:
            raise Failure("bad-json", f"{file}, line {number}: not JSON ({error})") from None
        if given is None:
            continue
        if not isinstance(given, dict) or not isinstance(given.get("type"), str):
            raise Failure("bad-json", f"{file}, line {number}: an event must be a JSON object whose `type` is a string")
        found.append(as_event({"type": given["type"], "payload": given.get("payload") or {}}, identity))
    return found


async def send(
    run: Run,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The agent's name.")],
    type_: Annotated[str, typer.Argument(metavar="TYPE", help="The command's type, such as `report`.")],
    payload: Annotated[str, typer.Argument(metavar="[JSON]", help="The command's payload, a JSON object.")] = "{}",
    key: Annotated[
        str | None,
        typer.Option(
            "--key", help="Idempotency key: of several commands with the same key, only the first is handled."
        ),
    ] = None,
) -> None:
    """Send a command to an agent and wait until its results are durable."""
    try:
        given = reading.loads(payload)
    except ValueError as error:
        raise Failure("bad-json", f"the payload is not JSON ({error}); quote the payload: '{{\"by\": 1}}'") from None
    if not isinstance(given, dict):
        raise Failure("bad-json", "the payload must be a JSON object, such as '{\"by\": 1}'")
    out = run.out
    found = await ask(run.home, "send", {"agent": agent, "type": type_, "payload": given, "key": key}, _CUT_OFF)
    if out.json:
        out.object(found)
        return
    out.text(f"{found['outcome']}: {counted(len(found['records']), 'record')}")
    if found["outcome"] == "ignored":
        note(f"The command was recorded, but the agent {agent} did nothing. Does it know the type {type_}?")
    for record in found["records"]:
        out.text(f"  {record['offset']:>4} {record['event']['type']}")
