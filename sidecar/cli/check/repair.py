"""``repair``: repairs the log's store where that is provably safe, and explains what it cannot repair."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from sidecar.cli.shared.command import RUNS, Run, explain

if RUNS:
    import asyncio

    from streams.log.repair import RepairRun, examine, is_begun
    from streams.log.repair_plan import Item, decide

    from sidecar.cli.printing.bar import BAR_BYTES, adding, bar
    from sidecar.cli.printing.output import Output, held_text
    from sidecar.cli.shared.identity import own_identity
    from sidecar.home import Home
    from sidecar.read.wording import counted
    from streams.errors import StreamError
    from streams.log.directory import refuse_links, refuse_writer, take_lock
    from streams.log.verify import Verification


async def repair(
    run: Run,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be repaired; change nothing.")] = False,
) -> int:
    """Repair the log where that is provably safe.

    Keeps what it removes, except a damaged search index, in `torn/` or `repaired/` in the store's directory. Never
    removes an acknowledged record; if one is damaged, restore a backup. Finally verifies the log, and exits with 0 only
    if the log is sound.
    """
    out, home = run.out, run.own_home
    refuse_links(home.store_path)
    # Check the directory before taking any lock, so that it stays unchanged if it is refused or is not a store.
    if not home.store_path.is_dir() or not await asyncio.to_thread(is_begun, home.store_path):
        return _nothing(out, home)
    with _held(home, dry_run):
        with _bar(out, home) as progress:
            facts = await examine(home.store_path, progress)
        items = decide(facts, log_id=own_identity().ulid())
        if not facts.stores and not items:
            return _nothing(out, home)
        repair_run = RepairRun(home.store_path)
        failed = 0
        for item in items:
            failed += await _do(out, repair_run, item, dry_run)
        if repair_run.aside is not None:
            out.told({"aside": str(repair_run.aside)}, f"what was removed is kept in {repair_run.aside}")
        if dry_run:
            return _end_of_dry_run(out, items)
        return await _verify(out, home, failed)


@contextmanager
def _held(home: Home, dry_run: bool) -> Iterator[None]:
    """Hold the locks, because no other process may write during a repair. An unfinished write of a sidecar would look
    like damage.
    """
    if dry_run:
        refuse_writer(home.store_path)  # check for a writer first, because that error names the process
        home.refuse_locked()
        yield
        return
    with home.lock():
        lock = take_lock(home.store_path)
        try:
            yield
        finally:
            lock.release()


@contextmanager
def _bar(out: Output, home: Home) -> Iterator[Callable[[int], None]]:
    """Show a bar while verifying, if the log is large enough for one."""
    store = home.store_path
    size = sum(path.stat().st_size for path in (*store.glob("log.db*"), *store.glob("log/*")))
    with bar(out, "verifying", "bytes", wanted=size >= BAR_BYTES) as shown:
        yield adding(shown, size, "verifying")


async def _do(out: Output, repair_run: RepairRun, item: Item, dry_run: bool) -> bool:
    """Carry out one item of the repair and print it; return true if the item failed."""
    outcome, text = "fixed", item.text
    if item.action is None:
        outcome = "cannot"
    elif dry_run:
        outcome = "would"
    else:
        try:
            await repair_run.carry_out(item)
        except (StreamError, OSError) as error:
            outcome, text = "failed", explain(error)
    if out.json:
        out.object({"outcome": outcome, **item.as_json(), "text": text})
    else:
        out.prose(f"{outcome:8}", item.found, {"fixed": "green", "would": "yellow"}.get(outcome, "bold red"))
        out.prose(" " * 8, text, "dim")
    return outcome in ("cannot", "failed")


def _end_of_dry_run(out: Output, items: list[Item]) -> int:
    cannot = sum(item.action is None for item in items)
    would = len(items) - cannot
    sound = "the store is sound: there is nothing to fix"
    text = f"{would} to fix, {cannot} that cannot be fixed; nothing was changed" if items else sound
    out.told({"would": would, "cannot": cannot}, text, "bold" if items else "green")
    return 1 if items else 0


async def _verify(out: Output, home: Home, failed: int) -> int:
    with _bar(out, home) as progress:
        check = Verification(home.store_path, alone=True)
        async for finding in check.run(progress):
            if out.json:
                out.object({"finding": finding.as_json()})
            elif not failed:
                out.prose("", str(finding), "red")
    summary = check.summary
    sound = not summary.findings and not failed
    records = held_text(summary)
    if sound:
        text = f"the store is sound: {records} verified"
    else:
        faults = max(summary.findings, failed)
        text = f"the store is not sound: {counted(faults, 'fault')} left; {records} verified"
    out.told({"sound": sound, "summary": summary.as_json()}, text, "green" if sound else "bold")
    return 0 if sound else 1


def _nothing(out: Output, home: Home) -> int:
    text = f"no log exists in {home.store_path} yet, so there is nothing to repair"
    out.told({"sound": True, "summary": None}, text)
    return 0
