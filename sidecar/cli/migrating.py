"""``migrate``: move the log between jsonl and sqlite, with the sidecar running or stopped."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from sidecar.cli.command import Failure, JsonFlag, home_of, warn

if TYPE_CHECKING:
    from sidecar.cli.output import Output
    from sidecar.home import Home

LOOK_SECONDS = 0.2
"""How often the progress of a running sidecar's move is asked for."""

PHASES = {
    "opening": "opening  ",
    "copying": "copying  ",
    "checking": "checking ",
    "switching": "switching",
    "done": "done     ",
}
"""Of one width, so that the bar stands still."""

Tell = Callable[[dict[str, Any]], None]


async def migrate(
    context: typer.Context,
    to: Annotated[str | None, typer.Option("--to", metavar="sqlite|jsonl", help="Where the log shall lie.")] = None,
    rollback: Annotated[
        bool, typer.Option("--rollback", help="Back to where the last move came from, with what was written since.")
    ] = False,
    discard_old: Annotated[
        bool, typer.Option("--discard-old", help="Delete the store that the last move left behind.")
    ] = False,
    json: JsonFlag = False,
) -> int:
    """Move the log to another backend, while it records.

    Every record is copied byte for byte and its hash chain computed anew; then
    the new store takes over in an instant. A move that was cut off goes on when
    it is started again. The old store stays until --discard-old. Where the log
    lies as wished already, or no old store is left, that is told and no failure;
    a --rollback for which none is kept is one.
    """
    from sidecar.cli.output import Output
    from streams.log_reader import LogReader
    from streams.store import NOTHING
    from streams.stores.directory import FORMATS
    from streams.stores.presence import located

    if sum((to is not None, rollback, discard_old)) != 1:
        raise typer.BadParameter("say one of --to sqlite, --to jsonl, --rollback and --discard-old")
    if to is not None and to not in FORMATS:
        raise typer.BadParameter(f"{to!r} is no backend: --to sqlite or --to jsonl")
    out, home = Output(json), home_of(context)
    home.check_owner()
    manifest = located(home.store_path)
    if manifest is None:
        raise Failure(f"there is no log in {home.store_path} yet: nothing to move")
    if discard_old:
        return await _discard(out, home, is_kept=manifest.kept is not None)
    if rollback:
        if manifest.kept is None:
            other = "jsonl" if manifest.backend == "sqlite" else "sqlite"
            raise Failure(
                f"no earlier store is kept, so there is nothing to go back to; the log stays in {manifest.backend}, "
                f"and `durable-stream migrate --to {other}` moves it anew"
            )
        to = manifest.kept.backend
    if manifest.backend == to:
        await _refuse_another_move(home, to)
        # A log that cannot be read, or of which a file is gone, lies nowhere as wished.
        reader = LogReader(home.store_path)
        if reader.head != NOTHING:
            await reader.glance()
        await reader.close()
        return _told(out, f"the log lies in {to} already", {"backend": to, "moved": False})
    from sidecar.cli.control import by_sidecar_or_ourselves

    wanted = cast(Literal["jsonl", "sqlite"], to)
    with _bar(out) as tell:
        done = await by_sidecar_or_ourselves(
            home, lambda: _by_sidecar(home, wanted, tell), lambda: _by_ourselves(home, wanted, tell)
        )
    from sidecar.checks import counted, kept_text

    pruned = done.get("pruned", 0)  # a sidecar of an older version does not say
    moved = f"{kept_text(done['copied'] - pruned, pruned)} in {counted(done['streams'], 'stream')}"
    text = (
        f"the log lies in {to} now: {moved}, the same hashes\n"
        f"recording paused for {done['held_ms']:.0f} ms\n"
        f"the old store is kept: --rollback goes back, --discard-old deletes it"
    )
    return _told(out, text, {"backend": to, "moved": True, **done})


async def _refuse_another_move(home: Home, to: str) -> None:
    """A log that lies where it is wished to may be on its way to elsewhere."""
    from sidecar.cli.control import LOOKING, by_sidecar_or_ourselves, control
    from streams.stores.directory import is_being_written

    async def asked() -> dict[str, Any]:
        async with control(home, LOOKING) as client:
            return dict(await client.request("migration"))

    async def at_rest() -> dict[str, Any]:
        if home.is_locked() or is_being_written(home.store_path):
            raise Failure(
                f"the log lies in {to}, but another command, or a sidecar that starts, is at work in {home.path} and "
                "may be moving it; wait until it has ended, then try again"
            )
        return {"running": False}

    answer = await by_sidecar_or_ourselves(home, asked, at_rest)
    if answer["running"] and answer["progress"]["to"] != to:
        raise Failure(
            f"the log lies in {to}, but a move to {answer['progress']['to']} is under way; "
            "`durable-stream status` shows how far it is, and --rollback takes it back when it is done"
        )


async def _by_sidecar(home: Home, to: Literal["jsonl", "sqlite"], tell: Tell) -> dict[str, Any]:
    import asyncio

    from sidecar.cli.control import MOVING, control

    async with control(home, MOVING) as client:
        answer = await client.request("migrate", {"to": to})
        while answer["running"]:
            tell(answer["progress"])
            await asyncio.sleep(LOOK_SECONDS)
            answer = await client.request("migration")
    if answer["failed"] or answer["backend"] != to:
        other = f"the log was not moved: a move to {answer['progress']['to']} was under way; try again"
        raise Failure(answer["failed"] or other)
    return cast(dict[str, Any], answer["progress"])


async def _by_ourselves(home: Home, to: Literal["jsonl", "sqlite"], tell: Tell) -> dict[str, Any]:
    """No sidecar runs: hold the home as one would, so that none starts meanwhile."""
    import errno
    import os
    from dataclasses import asdict

    from sidecar.cli.control import MOVING, by_ourselves
    from sidecar.config import load_config
    from streams.identity import system_identity
    from streams.log import Log
    from streams.migrate import Migration, telling_what_is_missing
    from streams.stores.reserve import free_bytes

    config = load_config(home.config_path)
    with home.lock(), by_ourselves(MOVING):
        with telling_what_is_missing(home.store_path, to):
            if not free_bytes(home.store_path):
                # Opening would fail, too, and leave files of SQLite's and a head file that was written anew.
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            log = await Log.open(home.store_path, system_identity(), segment_bytes=config.store.segment_bytes)
        try:
            warn(log.head_warning)
            return asdict(await Migration(log, to, lambda progress: tell(asdict(progress))).run())
        finally:
            await log.close()


async def _discard(out: Output, home: Home, *, is_kept: bool) -> int:
    from sidecar.cli.control import DISCARDING, by_sidecar_or_ourselves, control
    from sidecar.cli.output import bytes_text

    async def asked() -> int:
        async with control(home, DISCARDING) as client:
            return int((await client.request("discard_old"))["freed"])

    async def ourselves() -> int:
        from streams.migrate import discard_unserved

        with home.lock():
            return await discard_unserved(home.store_path)

    freed = await by_sidecar_or_ourselves(home, asked, ourselves)
    what = "the old store" if is_kept else "what a move or a deletion that was cut off had left"
    text = f"deleted {what}: {bytes_text(freed)} freed" if freed else "no old store is kept: nothing to delete"
    return _told(out, text, {"freed": freed})


def _bar(out: Output) -> AbstractContextManager[Tell]:
    """Shows progress on a terminal; elsewhere nothing is told until the end."""
    if not out.terminal or out.json:
        return nullcontext(lambda progress: None)
    return _Bar(out)


class _Bar(AbstractContextManager[Tell]):
    def __init__(self, out: Output) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[count]}"),
            TimeRemainingColumn(compact=True),
            console=out.console,
            transient=True,
            expand=True,
        )
        self._task = self._progress.add_task(PHASES["opening"], total=None, count="")

    def __enter__(self) -> Tell:
        self._progress.start()
        return self._tell

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def _tell(self, progress: dict[str, Any]) -> None:
        done, total = progress["copied"], progress["head"] + 1
        phase = PHASES[progress["phase"]]
        if progress["phase"] == "opening":
            self._progress.update(self._task, description=phase)
            return
        whole = f"{total:,}"
        count = f"{done:>{len(whole)},} of {whole} records"
        self._progress.update(self._task, description=phase, completed=done, total=total, count=count)


def _told(out: Output, text: str, facts: dict[str, Any]) -> int:
    if out.json:
        out.object(facts)
    else:
        for line in text.splitlines():
            out.prose("", line)
    return 0
