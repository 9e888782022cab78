"""``mirror status``, ``verify`` and ``rebuild``: the copy of the log on NATS."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sidecar.cli.shared.command import RUNS, Run, note
from sidecar.cli.shared.removing import NOTHING_CHANGED, YesFlag
from sidecar.failure import Failure

if TYPE_CHECKING:
    from bridge.nats.jetstream.sessions import Sessions
    from sidecar.mirror.verify import MirrorCheck, Verified
if RUNS:
    import asyncio
    import time
    from collections import Counter

    from bridge.nats.jetstream.errors import NatsUnavailable
    from sidecar.cli.printing.bar import bar
    from sidecar.cli.printing.output import Output
    from sidecar.cli.shared.control import LOOK_SECONDS, REBUILDING, ask_running, control
    from sidecar.cli.shared.identity import own_identity
    from sidecar.cli.shared.nats import at_rest, connection, mirror_words, nats_words
    from sidecar.config import Config, load_config
    from sidecar.home import Home
    from sidecar.read.wording import counted
    from streams.errors import CorruptLog
    from streams.log.completeness import located
    from streams.log.reader import LogReader

SHOWN = 20
"""Maximum number of differences of one kind printed one by one; --json prints all."""

BAR_RECORDS = 20_000
"""Minimum number of records for which a comparison shows a progress bar."""

PATIENCE_SECONDS = 30.0
"""A rebuild gives up if a problem lasts this long and nothing is published."""

SILENT_SECONDS = 300.0
"""A rebuild gives up after this long without progress, even without a problem."""

WORDS = {
    "missing": "missing",
    "extra": "too many",
    "changed": "changed",
    "order": "out of order",
    "unforgotten": "not forgotten",
}


async def status(run: Run) -> int:
    """Show the progress of the log's copy on NATS.

    Exits with 1 if something keeps the copy from being up to date.
    """
    home = run.own_home
    config, out = load_config(home.config_path), run.out
    runs = home.running() is not None
    found = await ask_running(home, "mirror") if runs else _at_rest(config)
    if out.json:
        out.object(found)
    else:
        for name, value in _rows(found, runs=runs):
            out.prose(f"{name:9}", value, "red" if name == "problem" else "")
    return 1 if found["problem"] else 0


async def verify(run: Run) -> int:
    """Compare the copy of the log on NATS with the log.

    Compares order, id, hash and form of every message. Messages that the server's limits removed, or that the log has
    pruned, are not faults. Changes nothing.
    """
    out, home = run.out, run.own_home
    async with connection(home) as sessions:
        check = await _check(home, sessions, with_ids=out.json)
        await _run_check(out, check)
    summary = check.summary
    if out.json:
        out.object({"summary": summary.as_json()})
    else:
        _verdict(out, summary)
    return 1 if summary.differences else 0


async def rebuild(run: Run, yes: YesFlag = False) -> None:
    """Remove this log's messages from NATS and publish them again.

    Messages of other homes on the same server stay. Pruned records that only the copy still has are lost. Without
    --yes, only prints a preview, which shows how many records would be lost. If the rebuild is interrupted, run it
    again.
    """
    out, home = run.out, run.own_home
    async with connection(home) as sessions:
        facts = await _before(home, sessions)
    if not yes:
        if out.json:
            out.object({**facts, "done": None})
        else:
            _tell_before(out, facts)
            note(NOTHING_CHANGED)
        return
    done = await _rebuild(out, home)
    if out.json:
        out.object({**facts, "done": done})
    else:
        lost = f"; {counted(facts['pruned'], 'message')} of pruned records are lost" if facts["pruned"] else ""
        out.text(f"the copy is complete again: {counted(facts['records'], 'record')} published in order{lost}", "green")
        out.text("`durable-stream mirror verify` compares it with the log")


# --- the mirror's status ---


def _at_rest(config: Config) -> dict[str, Any]:
    """The state to show if no sidecar is running."""
    found = at_rest(config.nats)
    del found["mirror"], found["deltas"]
    state = "off" if config.nats.mode == "off" else "stopped"
    return {**found, "state": state, "position": -1, "head": -1, "lag": 0, "problem": ""}


def _rows(found: dict[str, Any], *, runs: bool) -> list[tuple[str, str]]:
    rows = [("nats", nats_words(found, runs=runs))]
    if found["mode"] == "off":
        return rows
    if found["state"] == "stopped":
        return [*rows, ("mirror", "goes on when a sidecar runs; `durable-stream mirror verify` says how far it is")]
    rows.append(("mirror", mirror_words(found)))
    if found["lag"]:
        last = f"position {found['position']} of {found['head']}" if found["position"] >= 0 else "none yet"
        rows.append(("last", last))
    if found["problem"]:
        rows.append(("problem", found["problem"]))
    return rows


# --- comparing ---


async def _check(home: Home, sessions: Sessions, *, with_ids: bool) -> MirrorCheck:
    from sidecar.mirror.verify import MirrorCheck

    reader = LogReader(home.store_path)
    return MirrorCheck(reader, _log_id(home), sessions, now_ms=own_identity().now_ms, with_ids=with_ids)


def _log_id(home: Home) -> str:
    manifest = located(home.store_path)
    if manifest is None:
        raise Failure("no-log", f"no log exists in {home.store_path} yet, so nothing is mirrored")
    return manifest.log_id


async def _run_check(out: Output, check: MirrorCheck) -> None:
    shown: Counter[str] = Counter()
    total = check.head + 1
    with bar(out, "comparing", wanted=total >= BAR_RECORDS) as shown_bar:
        check.progress = lambda position: shown_bar(position + 1, total, "comparing")
        async for found in check.run():
            if out.json:
                out.object({"difference": found.as_json()})
                continue
            shown[found.kind] += 1
            if shown[found.kind] <= SHOWN:
                named = f" ({found.events[0]})" if found.events and found.events[0] else ""
                out.prose("", f"{found}{named}", "red")
    for kind, count in shown.items():
        if count > SHOWN:
            out.text(f"… and {count - SHOWN} more that are {WORDS[kind]}; --json lists them all", "red")


def _verdict(out: Output, summary: Verified) -> None:
    compared = sum(stream.compared for stream in summary.streams)
    said = [
        f"{count} {what}"
        for what, count in (
            ("expired", sum(stream.expired for stream in summary.streams)),
            ("of records that the log has pruned", sum(stream.pruned for stream in summary.streams)),
        )
        if count
    ]
    waiting = f"; {counted(summary.waiting, 'record')} not mirrored yet" if summary.waiting else ""
    if not summary.differences:
        also = f" (and {', '.join(said)})" if said else ""
        what = f"{counted(compared, 'message')} of {counted(summary.records, 'record')}"
        out.text(f"the copy equals the log: {what} compared{also}{waiting}", "green")
        return
    kinds = ", ".join(f"{count} {WORDS[kind]}" for kind, count in summary.kinds.items())
    out.text(f"the copy differs from the log: {kinds}; nothing was changed{waiting}", "bold")
    out.text("`durable-stream mirror rebuild` publishes this log again")


# --- rebuilding ---


async def _before(home: Home, sessions: Sessions) -> dict[str, Any]:
    """Preview a rebuild. First reads the log to its end, because a damaged log must not replace the copy on NATS."""
    from sidecar.mirror.verify import Disturbed

    check = await _check(home, sessions, with_ids=False)
    # Connect first, so that an unreachable server is not reported as an unreadable log.
    await sessions.get()
    unreadable = ""
    try:
        try:
            async for _ in check.run():
                pass
            records = check.summary.records
        except (NatsUnavailable, Disturbed) as error:
            unreadable, records = str(error), 0
            async for _ in LogReader(home.store_path).read_all():
                records += 1
    except CorruptLog as error:
        raise Failure(
            error.code,
            f"{error}; the records after the damage cannot be read, and NATS may have their only copy, so "
            "nothing was rebuilt; `durable-stream verify` shows every fault",
        ) from None
    streams = check.summary.streams
    return {
        "records": records,
        "messages": sum(stream.messages for stream in streams),
        "pruned": sum(stream.pruned for stream in streams),
        "differences": check.summary.differences,
        "unreadable": unreadable,
    }


def _tell_before(out: Output, facts: dict[str, Any]) -> None:
    would = f"remove {counted(facts['messages'], 'message')} of this log"
    would += f" and publish {counted(facts['records'], 'record')} again"
    if facts["differences"] or facts["unreadable"]:
        out.text(f"would {would}")
    else:
        out.text("the copy already equals the log, so there is nothing to rebuild", "green")
        out.text(f"a rebuild would still {would}")
    if facts["unreadable"]:
        out.prose("", f"the copy could not be read to its end, so it may hold more: {facts['unreadable']}", "yellow")
    if facts["pruned"]:
        lost = f"{counted(facts['pruned'], 'message')} of records that the log has pruned would be lost"
        out.prose("", f"{lost}, because only the copy has them", "yellow")


async def _rebuild(out: Output, home: Home) -> dict[str, Any]:
    """Rebuild, and wait until the mirror has published the log; return its last status."""
    async with control(home, REBUILDING) as client:
        asked = now = last = await client.request("mirror_rebuild")
        moved = time.monotonic()
        with bar(out, "publishing") as shown:
            while now["rebuilt"] == asked["rebuilt"] or now["position"] < asked["head"]:
                if (now["rebuilt"], now["position"]) != (last["rebuilt"], last["position"]):
                    last, moved = now, time.monotonic()
                if time.monotonic() - moved > (PATIENCE_SECONDS if now["problem"] else SILENT_SECONDS):
                    why = f"{now['problem'] or 'publishing stopped'}, at record {now['position']} of {asked['head']}"
                    raise Failure("copy-incomplete", f"the copy is incomplete: {why}; the sidecar will retry")
                shown(now["position"] + 1, now["head"] + 1, "publishing")
                await asyncio.sleep(LOOK_SECONDS)
                now = await client.request("mirror")
    return dict(now)
