"""``intents``: lists background work, shows its results, and cancels it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sidecar.cli.shared import complete
from sidecar.cli.shared.arguments import limit_option
from sidecar.cli.shared.command import RUNS, Run, note
from sidecar.cli.shared.machines import OnOption, made, question, request
from sidecar.cli.shared.removing import NOTHING_CHANGED
from sidecar.failure import Failure

if RUNS:
    from sidecar.background.intents.budgets import full
    from sidecar.background.intents.lifecycle import ENDED
    from sidecar.background.intents.rows import as_row, spent_by
    from sidecar.background.intents.state import Intent, State
    from sidecar.background.intents.texts import file_text, kept_copy_text, notes_text, overlap_text
    from sidecar.background.messages.deliver import notice_id
    from sidecar.background.messages.message import Message
    from sidecar.background.own_ids import of_person
    from sidecar.background.people import sentences
    from sidecar.background.people.sentences import state_of, waits
    from sidecar.background.people.sentences import used as used_by
    from sidecar.background.reading import diff_of, read_checkpoints, read_intents, read_messages
    from sidecar.cli.printing.output import Column, Output
    from sidecar.cli.shared.control import ask, control, proof
    from sidecar.cli.shared.identity import own_identity
    from sidecar.cli.shared.terminal import terminal
    from sidecar.home import Home
    from sidecar.read.find_by_id import catalog_of, empty_text
    from sidecar.read.host_agents import LABEL, host_agents
    from sidecar.read.wording import ago, amount, counted, local_time, money, rough_span, visible
    from streams.log.reader import LogReader
    from streams.store import NOTHING


async def intents(
    run: Run,
    intent: Annotated[
        str | None,
        typer.Argument(
            metavar="[INTENT]",
            help="Show this intent in full; give its id, or a unique prefix.",
            autocompletion=complete.intents,
        ),
    ] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="Stop the intent and everything it started.")] = False,
    apply: Annotated[
        bool, typer.Option("--apply", help="Apply the changes in the intent's copy to your files.")
    ] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Take back what --apply changed, but not your edits since.")
    ] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Print only the changes in the intent's copy.")] = False,
    discard: Annotated[
        bool,
        typer.Option("--discard", help="Remove an ended intent's saved changes, and its copy if it was kept."),
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Let work that waits for an OpenCode go on with this terminal's rights.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --discard: do not ask.")] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Also list the background agents that OpenCode started by itself.")
    ] = False,
    limit: Annotated[int | None, limit_option("intents")] = None,
    on: OnOption = None,
) -> None:
    """List background work, newest last: its state, age, cost, title, and why it failed.

    With --on, that of another machine; --apply and --undo then change the project of the current directory here.
    """
    out, home = run.out, run.home
    if intent is None and (cancel or apply or undo or diff or discard or resume):
        raise Failure("no-intent", "name the intent; `durable-stream intents` lists all intents")
    if on is not None and (discard or resume or everything):
        raise typer.BadParameter("`--discard`, `--resume` and `--all` work on this machine only: leave out `--on`")
    if apply or undo:
        retry = "it is safe to run the same command again"
        if on is None:
            found = await ask(home, "intent_apply", {"intent": intent, "undo": undo}, retry)
        else:
            asked = {"machine": on, "intent": intent, "undo": undo, "directory": str(Path.cwd())}
            found = {"applied": True, **await ask(home, "machine_apply", asked, retry)}
        before = "Nothing had to be taken back" if undo else "Its changes had already been applied"
        if not found["applied"] and not undo:
            before = "Other edits had already made its changes, so nothing was applied"
        did = f"{'Took back' if undo else 'Changed'} {counted(found['count'], 'file')}" if found["count"] else before
        out.result(found, f"{did} in {found['directory']}.")
        return
    if discard:
        await _discard(out, home, str(intent), yes=yes)
        return
    if resume:
        async with control(home, "it is safe to run the same command again") as client:
            given = {"intent": intent, "terminal": await terminal(home, client, Path.cwd())}
            found = dict(await client.request("intent_resume", given))
        out.result(found, f"{found['id']} goes on with the rights of this terminal.")
        return
    if on is not None:
        await _on(run, on, intent, cancel=cancel, diff=diff, limit=limit)
        return
    if cancel:
        found = await ask(home, "intent_cancel", {"intent": intent, **proof()}, "the intent is unchanged")
        out.result(found, f"{found['id']} is being cancelled.")
        return
    reader = run.reader
    state = await read_intents(reader)
    if intent is not None:
        named = of_person(state.intents.values(), intent, "intent")
        if diff and not out.json:
            out.text(visible((await diff_of(named, home.path)).rstrip("\n")))
            return
        message = (await read_messages(reader)).messages.get(notice_id(named.id))
        _show(
            out, named, state, await _waits(home, reader, state, named), message.state if message is not None else None
        )
        return
    listed = list(state.intents.values())[-limit if limit else 0 :]
    hosts = (await _host_agents(reader))[-limit if limit else 0 :] if everything else []
    if out.json:
        for each in listed:
            out.object({**as_row(each), "spent": spent_by(state, each.root)})
        for row in hosts:
            out.object(row)
        return
    if not listed and not hosts:
        started = "the tool agent_spawn or `durable-stream spawn` starts some"
        run.nothing(f"No background work yet: {started if reader.head > NOTHING else await empty_text(reader)}.")
        return
    _table(out, listed, hosts, await _retries(reader, listed))


async def _on(run: Run, machine: str, intent: str | None, *, cancel: bool, diff: bool, limit: int | None) -> None:
    """Show, or cancel, background work of another machine."""
    out = run.out
    if cancel:
        found = await request(run, machine, "cancel", {"intent": intent})
        if found is not None:
            did = "was taken back" if found["state"] == "withdrawn" else f"is being cancelled on {machine}"
            out.result(found, f"{found['id']} {did}.")
        return
    if diff and not out.json:
        changes = await question(run, machine, "intent_changes", {"intent": intent})
        out.text(visible(str(changes["changes"]).rstrip("\n")))
        return
    rows = (await question(run, machine, "intents"))["intents"]
    known = {each.id: each for each in (made(Intent, row) for row in rows)}
    if intent is not None:
        named = of_person(known.values(), intent, "intent")
        checkpoints = (await question(run, machine, "checkpoints"))["checkpoints"] if named.asks else []
        asks = [made(Message, row, to=row["tell"], queued=row["opened"]) for row in checkpoints]
        _show(out, named, State(intents=known), waits(named, "", asks), None)
        return
    listed = list(known.values())[-limit if limit else 0 :]
    if out.json:
        for each in listed:
            out.object({"machine": machine, **as_row(each)})
    elif listed:
        _table(out, listed, [], {})
    else:
        run.nothing(f"No background work on {machine}.")


async def _discard(out: Output, home: Home, intent: str, *, yes: bool) -> None:
    retry = "it is safe to run the same command again"
    found = await ask(home, "intent_discard", {"intent": intent, "preview": not yes}, retry)
    what = [*(["its saved changes"] if found["changes"] else []), *([found["copy"]] if found["copy"] else [])]
    if not yes and what and not out.json and sys.stdin.isatty():
        out.text(f"This removes {' and '.join(what)}. It cannot be undone.")
        yes = typer.confirm("Remove it?")
        found = await ask(home, "intent_discard", {"intent": intent}, retry) if yes else found
    if out.json:
        out.object({**found, "discarded": yes})
    elif not what:
        out.text(f"{found['id']} has nothing to discard.")
    elif yes:
        out.text(f"Removed {' and '.join(what)}.")
    else:
        out.text(f"This would remove {' and '.join(what)}. {NOTHING_CHANGED}")


async def _host_agents(reader: LogReader) -> list[dict[str, Any]]:
    catalog, _ = await catalog_of(reader)
    return host_agents(catalog)


async def _retries(reader: LogReader, intents: list[Intent]) -> dict[Any, str]:
    """Why and when a failed model is called again, by the sessions at work."""
    working = [each.session for each in intents if each.session is not None and each.state not in ENDED]
    sessions = (await catalog_of(reader))[0].sessions if working else {}
    return {name: sessions[name].retries for name in working if name in sessions}


def _table(out: Output, listed: list[Intent], hosts: list[dict[str, Any]], retries: dict[Any, str]) -> None:
    now = own_identity().now_ms()
    columns = (Column("id"), Column("state"), Column("started"), Column("ran", right=True), Column("cost", right=True))
    rows = []
    for each in listed:
        ran = each.ran(now) if each.started is not None else None
        rows.append(
            (
                each.id,
                sentences.state_of(each),
                ago(now - each.created),
                rough_span(ran) if ran is not None else "-",
                money(each.cost) if each.cost else "-",
                " · ".join(filter(None, (sentences.work(each), retries.get(each.session)))),
            )
        )
    for row in hosts:
        cost = money(row["cost"]) if row["cost"] else "-"
        title = f"{LABEL} · {row['title']}"
        state = "waiting for you" if row["asks"] else row["state"]
        rows.append((row["id"], state, ago(now - row["created"]), rough_span(row["ran"]), cost, title))
    out.table((*columns, Column("what", sentence=True)), rows)


async def _waits(home: Home, reader: LogReader, state: State, intent: Intent) -> list[dict[str, str]]:
    from sidecar.config import ConfigError, load_config

    reached = ""
    if intent.state == "queued":
        try:
            reached = full(state, load_config(home.config_path).phantom, intent)
        except ConfigError as error:
            note(f"The limits could not be read: {error}")
    found = waits(intent, reached, await read_checkpoints(reader) if intent.asks else ())
    retry = (await _retries(reader, [intent])).get(intent.session)
    return [*found, {"for": "model", "id": "", "text": f"the model, which {retry}"}] if retry else found


def _wait_text(wait: dict[str, str]) -> str:
    return f"your answer to {wait['id']}: {wait['text']}" if wait["for"] == "answer" else wait["text"]


def _place(intent: Intent) -> str | None:
    """Where the intent edits files; ``None`` if it has not started or has ended."""
    if intent.session is None or intent.state in ENDED:
        return None
    return intent.copy.get("root") or "your files, without a copy"


def _show(out: Output, intent: Intent, state: State, waits: list[dict[str, str]], notice: str | None) -> None:
    if out.json:
        spent = spent_by(state, intent.root)
        out.object({**as_row(intent), "spent": spent, "notice": notice, "waits": waits})
        return
    used = spent_by(state, intent.root)
    together = f"{used['sessions']} started, {rough_span(used['ran'])}, {amount(used['tokens'])} tokens"
    out.text(f"{intent.id}  {state_of(intent)}  {intent.title}")
    if intent.reason:
        out.text(f"  {intent.reason}")
    for name, value in (
        ("session", intent.session),
        ("parent", intent.parent),
        ("directory", intent.directory),
        ("works in", _place(intent)),
        *(("note", visible(each)) for each in notes_text(intent)),
        ("registered", local_time(intent.created)),
        ("used", used_by(intent, own_identity().now_ms())),
        *(("waits for", _wait_text(each)) for each in waits),
        ("notice", notice),
        ("its root", f"{together}, {money(used['cost'])}" if used["sessions"] > 1 else None),
    ):
        if value:
            out.prose(f"  {name:<11} ", str(value))
    for run in intent.setup:
        ended = "was stopped" if run["code"] is None else f"ended with code {run['code']}" if run["code"] else "done"
        out.text(f"\nsetup: {visible(run['command'])} ({ended}, {rough_span(round(run['seconds'] * 1000))})")
        if run["output"].strip():
            out.text(visible(run["output"].rstrip()))
    out.text(f"\nprompt:\n{intent.prompt}")
    if intent.result:
        out.text(f"\nresult:\n{intent.result}")
    for line in overlap_text(intent):
        out.text(line)
    if intent.changes.get("saved"):
        what = (
            "applied; --undo takes them back"
            if intent.applied
            else "not applied; --diff shows them, --apply applies them to your files"
        )
        out.text(f"\nchanges in its copy ({what}):")
        for each in intent.changes["files"]:
            out.text(f"  {visible(file_text(each))}")
        if more := intent.changes["count"] - len(intent.changes["files"]):
            out.text(f"  and {more} more; --diff shows them")
    elif intent.changes.get("error"):
        out.text(f"\nIts changes could not be saved: {intent.changes['error']}. They are in {intent.copy['root']}.")
    if intent.discarded:
        out.text("\nIts changes were discarded.")
    for line in kept_copy_text(intent.changes):
        out.text(line)
    if intent.state in ENDED and intent.session is not None:
        out.text(f"\n`durable-stream spawn --continue {intent.id} 'PROMPT'` goes on with it.")
