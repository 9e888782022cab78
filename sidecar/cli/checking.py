"""Commands that say whether all is well: ``status``, ``doctor``, ``verify``."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import typer

from sidecar.cli.command import JsonFlag, home_of

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from sidecar.cli.output import Output
    from streams.verify import Verification


async def verify(context: typer.Context, json: JsonFlag = False) -> int:
    """Check every record of the log.

    Checksums, order, whole batches, and each stream's hash chain. Changes nothing.
    """
    from sidecar.cli.output import Output
    from streams.verify import Verification

    out = Output(json)
    check = Verification(home_of(context).store_path)
    with _progress(out, check):
        async for finding in check.run():
            if json:
                out.object({"finding": finding.as_json()})
            else:
                out.prose("", str(finding), "yellow" if finding.kind == "torn" else "red")
    summary = check.summary
    if json:
        out.object({"summary": summary.as_json()})
    elif not summary.findings:
        streams = f"{summary.streams} stream{'' if summary.streams == 1 else 's'}"
        count = "all" if summary.records != 1 else "the"
        out.text(
            f"{count} {summary.records} record{'' if summary.records == 1 else 's'} in {streams} verified", "green"
        )
    else:
        faults = f"{summary.findings} finding{'' if summary.findings == 1 else 's'}"
        out.text(f"{faults} in {summary.records} records of {summary.streams} streams; nothing was changed", "bold")
    return 1 if summary.findings else 0


def _progress(out: Output, check: Verification) -> AbstractContextManager[object]:
    """A bar on a terminal, which findings are printed above."""
    if not out.terminal:
        return nullcontext()
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("verifying"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=out.console,
        transient=True,
    )
    task = bar.add_task("", total=check.size())
    check.progress = lambda size: bar.advance(task, size)
    return bar


async def status(context: typer.Context, json: JsonFlag = False) -> int:
    """Show on one screen whether all is well.

    The sidecar, its links, the log, and what waits. Works without a running sidecar, too.
    """
    from sidecar.checks import gather_status
    from sidecar.cli.output import Output

    out = Output(json)
    found = await gather_status(home_of(context))
    if json:
        out.object(found)
    else:
        print_status(out, found)
    return 1 if found["problems"] else 0


def print_status(out: Output, found: dict[str, Any]) -> None:
    """The status for a person: the verdict first, then the facts."""
    from sidecar.cli.output import amount, bytes_text, local_time
    from streams.query import describe_span

    problems, notes = found["problems"], found["notes"]
    if problems:
        out.text("Something is wrong:", "bold red")
    else:
        out.text("All is well." if not notes else "All is well, with a note:", "bold green")
    for problem in problems:
        out.prose("  ! ", problem, "red")
    for note in notes:
        out.prose("  - ", note, "yellow")
    out.text()
    sidecar, links, log = found["sidecar"], found["links"], found["log"]
    rows = [("home", found["home"])]
    if sidecar:
        up = describe_span(sidecar.get("uptime_ms") or 0)
        rows.append(
            ("sidecar", f"running for {up}, pid {sidecar['pid']}, port {sidecar['port']}, {sidecar['version']}")
        )
    else:
        rows.append(("sidecar", "not running; OpenCode starts it when it needs it"))
    for number, link in enumerate(links):
        silent = "" if link.get("delivers", True) else ", delivers nothing"
        waiting = f", {link['pending']} waiting" if link.get("pending") else ""
        text = (
            f"OpenCode {link.get('opencode_version') or '?'} in {link['directory']}, pid {link['pid']}{waiting}{silent}"
        )
        rows.append(("" if number else "linked", text))
    if sidecar and not links:
        rows.append(("linked", "no OpenCode"))
    last = f", last at {local_time(log['last_ts'])}" if log.get("last_ts") else ""
    streams = f" in {log['streams']} streams" if log.get("streams") is not None else ""
    rows.append(("log", f"{log['head'] + 1} records{streams}{last}"))
    rows.append(("spool", f"{found['spool']['files']} files, {bytes_text(found['spool']['bytes'])}"))
    rows.append(("waiting", f"{found['held']} hooks for their pair or parent" if found["held"] else "nothing"))
    rows.append(("lost", f"{found['gaps']} gaps recorded" if found["gaps"] else "nothing"))
    for name, value in rows:
        out.prose(f"{name:9}", value)
    if counts := _grouped(found["counts"]):
        out.prose(f"{'counted':9}", ", ".join(f"{amount(n)} {name}" for name, n in counts.items()))


def _grouped(counts: dict[str, Any]) -> dict[str, int]:
    """Counters by the word before their colon, so that they fit a screen."""
    groups: dict[str, int] = {}
    for name, count in counts.items():
        if isinstance(count, int) and count:
            word = name.partition(":")[0].replace("_", " ")
            groups[word] = groups.get(word, 0) + count
    return groups


async def doctor(context: typer.Context, json: JsonFlag = False) -> int:
    """Look for what is wrong, with hints.

    OpenCode, the plugin, the home, the sidecar, the log and the disk.
    """
    from sidecar.checks import diagnose
    from sidecar.cli.installing import executable
    from sidecar.cli.output import Output

    out = Output(json)
    problems = 0
    styles = {"ok": "green", "note": "yellow", "problem": "bold red"}
    async for check in diagnose(home_of(context), executable()):
        problems += check.level == "problem"
        if json:
            out.object(check.as_json())
            continue
        style = styles[check.level] if check.level != "ok" else ""
        out.prose(f"{check.level:9}", f"{check.name}: {check.text}", style)
        if check.hint:
            out.prose(" " * 9, check.hint, "dim")
    if not json:
        out.text(
            "no problem found" if not problems else f"{problems} problem{'' if problems == 1 else 's'} found", "bold"
        )
    return 1 if problems else 0
