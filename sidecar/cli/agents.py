"""``agents``: the agents that run in the sidecar, and ``send``: a command for one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sidecar.cli.shared.command import Failure, JsonFlag, home_of, note

if TYPE_CHECKING:
    from sidecar.cli.shared.output import Output

_CUT_OFF = "run the same command with the same --key, which is safe"


async def agents(context: typer.Context, json: JsonFlag = False) -> int:
    """List the agents that run in the sidecar, with health, lag and last error.

    Starts a sidecar if none runs. Exits with 1 if an agent failed or could not be loaded.
    """
    from sidecar.cli.shared.control import ask
    from sidecar.cli.shared.output import Output

    out = Output(json)
    found = await ask(home_of(context), "agents", {}, "nothing was changed")
    failed = bool(found["problems"]) or any(row["health"] == "FAILED" for row in found["agents"])
    if json:
        out.object(found)
    else:
        _table(out, found["agents"])
        for problem in found["problems"]:
            note(f"{problem['spec']} cannot be loaded: {problem['reason']}.")
    return 1 if failed else 0


def _table(out: Output, rows: list[dict[str, Any]]) -> None:
    from sidecar.cli.shared.output import Column
    from sidecar.views.wording import amount

    names = ("agent", "health", "handled", "lag", "effects", "in doubt", "dead")
    columns = [Column(name, right=number > 1) for number, name in enumerate(names)]
    out.table(
        (*columns, Column("last error", wide=True)),
        [
            (
                row["name"],
                row["health"],
                *(amount(row[name]) for name in ("handled", "lag", "effects", "in_doubt", "dead")),
                row["last_error"] or "-",
            )
            for row in rows
        ],
    )


async def send(
    context: typer.Context,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The agent's name.")],
    type_: Annotated[str, typer.Argument(metavar="TYPE", help="The command's type, such as `report`.")],
    payload: Annotated[str, typer.Argument(metavar="[JSON]", help="The command's payload, a JSON object.")] = "{}",
    key: Annotated[str | None, typer.Option("--key", help="The same key is handled only once.")] = None,
    json: JsonFlag = False,
) -> None:
    """Send a command to an agent and wait until its results are durable."""
    import json as reading

    from sidecar.cli.shared.control import ask
    from sidecar.cli.shared.output import Output

    try:
        given = reading.loads(payload)
    except ValueError as error:
        raise Failure("bad-json", f"the payload is not JSON ({error}); quote it: '{{\"by\": 1}}'") from None
    if not isinstance(given, dict):
        raise Failure("bad-json", "the payload must be a JSON object, such as '{\"by\": 1}'")
    out = Output(json)
    found = await ask(home_of(context), "send", {"agent": agent, "type": type_, "payload": given, "key": key}, _CUT_OFF)
    if json:
        out.object(found)
        return
    out.text(f"{found['outcome']}: {len(found['records'])} records")
    for record in found["records"]:
        out.text(f"  {record['offset']:>4} {record['event']['type']}")
