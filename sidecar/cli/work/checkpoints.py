"""``checkpoints``: lists what is waiting for an answer, and answers it."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from sidecar.cli.shared import complete
from sidecar.cli.shared.arguments import limit_option
from sidecar.cli.shared.command import RUNS, Run, note
from sidecar.cli.shared.machines import OnOption, made, question, request
from sidecar.failure import Failure

if RUNS:
    from sidecar.background.messages.answers import as_row
    from sidecar.background.messages.message import Message
    from sidecar.background.own_ids import of_person
    from sidecar.background.people import sentences
    from sidecar.background.people.consent import always_text
    from sidecar.background.reading import find_checkpoint, read_checkpoints, whole
    from sidecar.cli.printing.output import Column, Output
    from sidecar.cli.shared.control import ask, proof
    from sidecar.cli.shared.identity import own_identity
    from sidecar.read.ask_text import on_one_line
    from sidecar.read.find_by_id import empty_text
    from sidecar.read.wording import ago, local_time, visible
    from streams.store import NOTHING


async def checkpoints(
    run: Run,
    checkpoint: Annotated[
        str | None,
        typer.Argument(
            metavar="[CHECKPOINT]",
            help="Show this checkpoint in full; give its id, or a unique prefix.",
            autocompletion=complete.checkpoints,
        ),
    ] = None,
    answer: Annotated[
        list[str] | None,
        typer.Option(
            "--answer",
            metavar="once|always|reject|TEXT",
            help="The answer. Repeat the option to add a message after reject, or to answer several questions.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --answer always: do not ask.")] = False,
    all_: Annotated[bool, typer.Option("--all", help="Also list checkpoints that are no longer waiting.")] = False,
    limit: Annotated[int | None, limit_option("checkpoints")] = None,
    on: OnOption = None,
) -> None:
    """List what is waiting for your answer in any session, or give an answer.

    The first answer wins, wherever you give it. A late answer fails with the code already-answered.
    """
    out, home = run.out, run.home
    if answer:
        if checkpoint is None:
            raise Failure(
                "no-checkpoint",
                "name the checkpoint to answer; `durable-stream checkpoints` lists the open checkpoints",
            )
        if on is not None:
            await _answer_on(run, on, checkpoint, answer, yes=yes)
            return
        given: dict[str, Any] = {"checkpoint": checkpoint, "answer": answer, **proof()}
        if answer == ["always"] and not yes and not proof() and not await _agreed(run, checkpoint):
            return
        found = await ask(home, "checkpoint_answer", given, "run the same command again; the first answer wins")
        out.result(found, f"{found['id']} answered: {'; '.join(found['answer'])}")
        return
    if on is None:
        reader = run.reader
        if checkpoint is not None:
            _show(out, await whole(reader, await find_checkpoint(reader, checkpoint)))
            return
        listed = await read_checkpoints(reader, with_closed=all_)
    else:
        listed = await _listed_on(run, on)
        if checkpoint is not None:
            _show(out, of_person(listed, checkpoint, "checkpoint"), on)
            return
    shown = [each for each in listed if all_ or each.is_open][-limit if limit else 0 :]
    if out.json:
        for each in shown:
            out.object(as_row(each))
    elif shown:
        _table(out, shown)
        if out.terminal and not all_:
            there = f" --on {on}" if on is not None else ""
            out.prose("", f"`durable-stream checkpoints{there} ID` shows one whole, and how to answer it.", "dim")
    elif on is not None:
        run.nothing(f"Nothing is waiting for an answer on {on}.")
    else:
        empty = run.reader.head == NOTHING
        run.nothing(
            f"Nothing is waiting for an answer: {await empty_text(run.reader)}."
            if empty
            else "Nothing is waiting for an answer."
        )


async def _listed_on(run: Run, machine: str) -> list[Message]:
    rows = (await question(run, machine, "checkpoints"))["checkpoints"]
    return [made(Message, row, to=row["tell"], queued=row["opened"]) for row in rows]


async def _answer_on(run: Run, machine: str, checkpoint: str, answer: list[str], *, yes: bool) -> None:
    if answer == ["always"] and not yes:
        each = of_person(await _listed_on(run, machine), checkpoint, "checkpoint")
        if not _agreed_to(run, each, machine):
            return
    found = await request(run, machine, "answer", {"checkpoint": checkpoint, "answer": answer})
    if found is not None:
        run.out.result(found, f"{found['id']} answered on {machine}: {'; '.join(found['answer'])}")


async def _agreed(run: Run, checkpoint: str) -> bool:
    return _agreed_to(run, await whole(run.reader, await find_checkpoint(run.reader, checkpoint)))


def _agreed_to(run: Run, each: Message, on: str | None = None) -> bool:
    """Show all that `always` allows, and ask whether it may."""
    if each.kind != "permission" or not each.is_open:
        return True  # the word has no such meaning there, or the sidecar says that it is too late
    if run.out.json or not sys.stdin.isatty():
        raise Failure("not-confirmed", "nothing was allowed, because nobody was asked; confirm it with `--yes`")
    _show(run.out, each, on)
    run.out.flush()
    if typer.confirm("Allow this always?"):
        return True
    note("Nothing was answered.")
    return False


def _table(out: Output, listed: list[Message]) -> None:
    now = own_identity().now_ms()
    names = ("id", "kind", "state", "asked", "session")
    out.table(
        (*(Column(name) for name in names), Column("what", sentence=True)),
        [
            (
                c.id,
                c.kind,
                sentences.how_it_stands(c),
                ago(now - c.queued),
                c.session[-10:],
                on_one_line(sentences.asks(c)),
            )
            for c in listed
        ],
    )


def _show(out: Output, each: Message, on: str | None = None) -> None:
    if out.json:
        out.object(as_row(each))
        return
    out.text(f"{each.id}  {each.kind}  {sentences.how_it_stands(each)}")
    for name, value in (
        ("agent", each.effect.get("agent")),
        ("session", each.session),
        ("intent", each.intent),
        ("asked", local_time(each.queued)),
        ("expires", each.expires and local_time(each.expires)),
        ("default", each.default),
        ("options", ", ".join(each.options)),
        ("always", always_text(each) and f"allows {always_text(each)}"),
        ("answer", "; ".join(each.answer)),
        ("by", " ".join(filter(None, (each.by, _via(each.via))))),
    ):
        if value:
            out.prose(f"  {name:<8} ", str(value))
    if each.left_out:
        out.text(f"  {each.left_out} characters are left out: their record was pruned")
    out.text(f"\n{visible(each.text)}")
    if each.is_open:
        out.text(f"\n{sentences.how_to_answer(each, on)}.")


def _via(via: dict[str, Any]) -> str:
    """``(command-line, process 123, /dev/pts/3)``."""
    process = f"process {via['pid']}" if via.get("pid") else ""
    parts = ", ".join(filter(None, (via.get("channel"), process, via.get("tty"))))
    return f"({parts})" if parts else ""
