"""Commands that say whether all is well: ``status``, ``doctor``, ``verify``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sidecar.cli.shared.command import Failure, JsonFlag, home_of, named_home

if TYPE_CHECKING:
    from sidecar.checks import Check
    from sidecar.home import Home
    from streams.log.verify import Summary

BAR_BYTES = 8 * 1024 * 1024
"""A log from this size on takes long enough to verify for a progress bar."""


async def verify(context: typer.Context, json: JsonFlag = False) -> int:
    """Check every record of the log.

    Checksums, order, whole batches, and each stream's hash chain. Changes nothing.
    """
    from sidecar.cli.shared.bar import adding, bar
    from sidecar.cli.shared.output import Output
    from streams.log.presence import kept_hint
    from streams.log.verify import Verification

    out, home = Output(json), home_of(context)
    if not home.path.is_dir():
        raise Failure(f"there is no home {home.path}: nothing was verified; name another one with --home")
    check = Verification(home.store_path)
    size = check.size()
    with bar(out, "verifying", "bytes", wanted=size >= BAR_BYTES) as shown:
        check.progress = adding(shown, size, "verifying")
        async for finding in check.run():
            if json:
                out.object({"finding": finding.as_json()})
            else:
                out.prose("", str(finding), "yellow" if finding.kind == "torn" else "red")
    summary = check.summary
    kept = kept_hint(home.store_path) if summary.findings else None
    if json:
        out.object({"summary": summary.as_json(), **({} if kept is None else {"hint": kept})})
    elif not summary.findings:
        count = "all" if summary.records != 1 else "the"
        out.text(f"{count} {held_text(summary)} verified", "green")
    else:
        faults = f"{summary.findings} finding{'' if summary.findings == 1 else 's'}"
        out.text(f"{faults} in {held_text(summary)}; nothing was changed", "bold")
        if kept is not None:
            out.prose("", kept)
    return 1 if summary.findings else 0


def held_text(summary: Summary) -> str:
    """What a log holds, in the words of ``status``: ``12 records (3 pruned), 4 of them forgotten, in 2 streams``."""
    from sidecar.checks import counted, kept_text

    forgotten = f", {summary.forgotten} of them forgotten," if summary.forgotten else ""
    return f"{kept_text(summary.records, summary.pruned)}{forgotten} in {counted(summary.streams, 'stream')}"


async def status(context: typer.Context, json: JsonFlag = False) -> int:
    """Show on one screen whether all is well.

    The sidecar, its links, the log, and what waits. Works without a running sidecar, too.
    """
    from sidecar.cli.shared.output import Output
    from sidecar.cli.shared.state import gather_status, print_status

    out = Output(json)
    found = await gather_status(named_home(context))
    if json:
        out.object(found)
    else:
        print_status(out, found)
    return 1 if found["problems"] else 0


async def doctor(
    context: typer.Context,
    fix: Annotated[bool, typer.Option("--fix", help="Mend what can be mended; each change is told.")] = False,
    json: JsonFlag = False,
) -> int:
    """Look for what keeps sessions from being recorded, with hints.

    OpenCode, the plugin, the home, the sidecar, the log, the clock and the disk. Ends with 1 if there is a problem.
    """
    from sidecar.checks import counted, diagnose
    from sidecar.cli.install import executable
    from sidecar.cli.shared.output import Output

    out = Output(json)
    home, command = named_home(context), executable()
    problems = repairs = 0
    async for check in diagnose(home, command):
        mended, failed = await _mend(home, command, check) if fix and check.fix else (None, None)
        problems += check.level == "problem" and mended is None
        repairs += mended is not None
        if json:
            out.object(check.as_json() | ({"mended": mended, "failed": failed} if fix else {}))
            continue
        style = {"ok": "", "note": "yellow", "problem": "bold red"}[check.level]
        out.prose(f"{check.level:9}", f"{check.name}: {check.text}", style)
        if mended is not None:
            out.prose(" " * 9, f"mended: {mended}", "green")
        elif check.hint:
            out.prose(" " * 9, f"not mended: {failed}" if failed else check.hint, "dim")
    if not json:
        before = f"{counted(repairs, 'finding')} mended, " if repairs else ""
        number = counted(problems, "problem") if problems else "no problem"
        out.text(f"{before}{number} {'left' if repairs else 'found'}", "bold")
    return 1 if problems else 0


async def _mend(home: Home, command: list[str], check: Check) -> tuple[str | None, str | None]:
    """What was done about a finding, or why nothing was."""
    from sidecar.checks.mending import mend
    from sidecar.home import HomeError
    from sidecar.install.plugin import InstallError
    from sidecar.link.client import ClientError

    assert check.fix is not None
    try:
        return await mend(home, command, check.fix), None
    except (HomeError, InstallError, ClientError) as error:
        return None, str(error)
    except OSError as error:
        return None, f"{check.fix.path}: {error.strerror}"
