"""``dlq list``, ``show``, ``redrive`` and ``drop``: the messages that agents could not handle."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from sidecar.cli.shared.command import RUNS, Run
from sidecar.failure import Failure

if RUNS:
    from bridge.opencode.link.protocol import RequestError
    from sidecar.agents.letters import letters_of
    from sidecar.agents.view import DeadLetter
    from sidecar.cli.printing.output import Column
    from sidecar.cli.shared.command import complain
    from sidecar.cli.shared.control import control
    from sidecar.cli.shared.team import team_log
    from sidecar.read.wording import local_time

_CUT_OFF: Final = "it is safe to run the same command again"
_LONGEST: Final = 120

LetterArgument = Annotated[
    str, typer.Argument(metavar="LETTER", help="The dead letter's id, or a unique suffix of it.")
]
LettersArgument = Annotated[
    list[str], typer.Argument(metavar="LETTER…", help="The dead letters' ids, or unique suffixes of them.")
]


async def list_(
    run: Run,
    agent: Annotated[str | None, typer.Option(metavar="NAME", help="Only this agent's dead letters.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Also list redriven and dropped dead letters.")] = False,
) -> None:
    """List the messages that agents could not handle, oldest first."""
    out = run.out
    found = await _letters(run)
    chosen = [each for each in found if agent in (None, each.agent) and (all_ or each.state == "open")]
    if out.json:
        for letter in chosen:
            out.object(letter.as_json())
        return
    if not chosen:
        run.nothing("There are no dead letters.")
        return
    columns = [Column(name) for name in ("letter", "agent", "type", "at", "state")]
    out.table(
        (*columns, Column("reason")),
        [
            (
                letter.id if not out.terminal else letter.id[-10:],
                letter.agent,
                letter.type,
                local_time(letter.ts),
                letter.state if letter.can_redrive or letter.state != "open" else "undecodable",
                letter.reason[:_LONGEST],
            )
            for letter in chosen
        ],
    )


async def show(run: Run, letter: LetterArgument) -> None:
    """Show the input of a dead letter, and why it failed."""
    from sidecar.cli.printing.records import outline

    out = run.out
    found = _one(await _letters(run), letter)
    record = await run.reader.find_event(found.id)
    if record is None:
        with team_log(run.home) as shared:
            record = await shared.find_event(found.id) if shared is not None else None
    if record is None:
        raise Failure("no-dead-letter", f"the record of {found.id} has just been removed")
    if out.json:
        out.object({**found.as_json(), "record": record.as_json()})
        return
    for line in outline({**found.as_json(), "payload": record.event.payload}):
        out.text(line)


async def redrive(run: Run, letters: LettersArgument) -> int:
    """Hand dead letters to their agents again.

    Starts a sidecar if none is running. If a message fails again, it stays a dead letter, and the command exits with 1.
    """
    return await _settle(run, "dlq_redrive", letters)


async def drop(run: Run, letters: LettersArgument) -> int:
    """Close dead letters without handing them to their agents again. Their records stay in the log.

    Starts a sidecar if none is running.
    """
    return await _settle(run, "dlq_drop", letters)


async def _settle(run: Run, request: str, given: list[str]) -> int:
    """Send the sidecar a request for each letter. If the sidecar refuses a letter, continue with the next one."""
    home, out, failed = run.home, run.out, False
    known = await _letters(run)
    chosen = list(dict.fromkeys(_one(known, each).id for each in given))
    async with control(home, _CUT_OFF) as client:
        for letter in chosen:
            done: dict[str, Any]
            try:
                done = dict(await client.request(request, {"letter": letter}))
            except RequestError as error:
                failed = True
                done = {"letter": letter, "outcome": "failed", "code": error.code, "reason": error.message}
                if not out.json:
                    complain(f"{letter}: {error.message} [{error.code}]")
            else:
                if not out.json:
                    out.text(f"{letter}: {done['outcome']}")
            if out.json:
                out.object(done)
    return 1 if failed else 0


async def _letters(run: Run) -> list[DeadLetter]:
    """The dead letters of this home's agents and then of the team's, each oldest first."""
    found = await letters_of(run.reader)
    if run.elsewhere is None:
        with team_log(run.home) as shared:
            found += await letters_of(shared) if shared is not None else []
    return found


def _one(letters: list[DeadLetter], given: str) -> DeadLetter:
    """The letter whose id is, or ends with, ``given``.

    Raises:
        Failure: there is no such letter, or more than one.
    """
    found = [each for each in letters if each.id == given] or [
        each for each in letters if given and each.id.endswith(given.upper())
    ]
    if not found:
        hint = "`durable-stream dlq list` lists the open dead letters"
        raise Failure("no-dead-letter", f"no dead letter is named {given[:80]!a}; {hint}")
    if len(found) > 1:
        raise Failure(
            "ambiguous", f"{len(found)} dead letters have an id that ends in {given[:80]!a}; type more of the id"
        )
    return found[0]
