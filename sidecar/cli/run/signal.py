"""``signal``: raise a named signal that an agent is waiting for."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from sidecar.cli.shared.command import RUNS, Run
from sidecar.cli.shared.machines import OnOption, request
from sidecar.failure import Failure

if RUNS:
    import json as reading

    from sidecar.background.messages.signals import SIGNAL
    from sidecar.cli.shared.control import ask


async def signal(
    run: Run,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The signal's name, such as `deployed`.")],
    payload: Annotated[
        str | None, typer.Argument(metavar="[JSON]", help="A JSON payload for the agents that wait for the signal.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="Idempotency key: a signal with the same key is raised only once.")
    ] = None,
    on: OnOption = None,
) -> None:
    """Raise a signal for agents that wait for it with the tool wait_for, now or later."""
    if re.fullmatch(SIGNAL, name) is None:
        raise Failure(
            "bad-arguments",
            f"{name!r} is not a valid signal name; use at most 100 letters, digits, `.`, `_` and `-`, beginning with a "
            "letter or a digit",
        )
    given: Any = None
    if payload is not None:
        try:
            given = reading.loads(payload)
        except ValueError as error:
            raise Failure(
                "bad-json", f"the payload is not JSON ({error}); quote the payload: '{{\"by\": 1}}'"
            ) from None
    if on is not None:
        answer = await request(run, on, "signal", {"name": name, "payload": given}, key=key)
        if answer is not None:
            run.out.result(answer, f"{answer['name']} was raised on {on}; {answer['count']} so far")
        return
    asked = {"name": name, "payload": given, "key": key}
    found = await ask(run.home, "signal", asked, "it is safe to run the same command again with the same `--key`")
    run.out.result(found, f"{found['name']} was raised; {found['count']} so far")
