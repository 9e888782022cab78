"""``migrate``: have the sidecar move the log between jsonl and sqlite."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sidecar.cli.shared.command import RUNS, Run
from sidecar.failure import Failure

if RUNS:
    import asyncio

    from sidecar.cli.printing.bar import bar
    from sidecar.cli.printing.output import Output
    from sidecar.cli.shared.control import DISCARDING, LOOK_SECONDS, MOVING, ask, control
    from sidecar.home import Home
    from sidecar.read.wording import bytes_text, counted
    from streams.log.directory import FORMATS
    from streams.log.presence import located

PHASES = {phase: phase.ljust(9) for phase in ("opening", "copying", "verifying", "switching", "done")}
"""The names of the phases, padded to the same width so that the bar does not move."""


async def migrate(
    run: Run,
    to: Annotated[str | None, typer.Option("--to", metavar="sqlite|jsonl", help="The backend to migrate to.")] = None,
    rollback: Annotated[
        bool, typer.Option("--rollback", help="Undo the last migration but keep everything written since.")
    ] = False,
    discard_old: Annotated[
        bool, typer.Option("--discard-old", help="Delete the old store that the last migration left behind.")
    ] = False,
) -> None:
    """Migrate the log to another backend without interrupting recording.

    Copies every record byte for byte, checks each hash chain, and then switches to the copy instantly. To continue an
    interrupted migration, run the command again. The old store stays until --discard-old deletes it. If there is
    nothing to do, --to and --discard-old succeed, but --rollback fails.
    """
    if sum((to is not None, rollback, discard_old)) != 1:
        raise typer.BadParameter("give one of `--to sqlite`, `--to jsonl`, `--rollback` and `--discard-old`")
    if to is not None and to not in FORMATS:
        raise typer.BadParameter(f"{to!r} is not a backend; give `--to sqlite` or `--to jsonl`")
    out, home = run.out, run.own_home
    manifest = located(home.store_path)
    if manifest is None:
        raise Failure("no-log", f"no log exists in {home.store_path} yet, so there is nothing to migrate")
    if discard_old:
        await _discard(out, home, is_kept=manifest.kept is not None)
        return
    if rollback:
        if manifest.kept is None:
            other = "jsonl" if manifest.backend == "sqlite" else "sqlite"
            unless = ", unless records were pruned or forgotten" if other == "jsonl" else ""
            raise Failure(
                "no-old-store",
                f"no old store exists to go back to, so the log stays in {manifest.backend}; "
                f"to change that, run `durable-stream migrate --to {other}`{unless}",
            )
        to = manifest.kept.backend
    assert to is not None
    is_there = manifest.backend == to
    done = await _move(out, home, to, begin=not is_there)
    if is_there:
        out.told({"backend": to, "moved": False}, f"the log is already in {to}")
        return
    moved = f"{counted(done['copied'], 'record')} in {counted(done['streams'], 'stream')}"
    text = (
        f"the log is in {to} now: {moved}, the same hashes\n"
        f"recording paused for {done['held_ms']:.0f} ms\n"
        f"the old store is kept: --rollback goes back, --discard-old deletes it"
    )
    out.told({"backend": to, "moved": True, **done}, text)


async def _move(out: Output, home: Home, to: str, *, begin: bool) -> dict[str, Any]:
    """Have the sidecar migrate the log, and wait until it is done; without ``begin``, only check that no migration is
    running.

    Raises:
        Failure: the log was not moved.
    """
    async with control(home, MOVING) as client:
        answer = await client.request("migrate", {"to": to}) if begin else await client.request("migration")
        if answer["running"] and answer["progress"]["to"] != to:
            raise Failure(
                "other-move",
                f"a migration to {answer['progress']['to']} is in progress: `durable-stream status` shows its "
                "progress; to undo the migration, use --rollback once it has finished",
            )
        if not begin:
            return {}
        with bar(out, PHASES["opening"]) as shown:
            while answer["running"]:
                progress = answer["progress"]
                total = None if progress["phase"] == "opening" else progress["head"] + 1
                shown(progress["copied"], total, PHASES[progress["phase"]])
                await asyncio.sleep(LOOK_SECONDS)
                answer = await client.request("migration")
    if answer["failed"]:
        raise Failure(answer["failed_code"] or "migration-failed", answer["failed"])
    return dict(answer["progress"])


async def _discard(out: Output, home: Home, *, is_kept: bool) -> None:
    freed = int((await ask(home, "discard_old", {}, DISCARDING))["freed"])
    what = "the old store" if is_kept else "the remains of an interrupted migration or deletion"
    text = (
        f"deleted {what}: {bytes_text(freed)} freed" if freed else "no old store exists, so there is nothing to delete"
    )
    out.told({"freed": freed}, text)
