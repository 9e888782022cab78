"""``doctor``: finds what keeps sessions from being recorded, and with ``--fix`` fixes what it can."""

from __future__ import annotations

from typing import Annotated

import typer

from sidecar.cli.shared.command import RUNS, Run

if RUNS:
    from sidecar.care.checks.check import Check
    from sidecar.care.checks.table import diagnose
    from sidecar.cli.setup.install import executable
    from sidecar.cli.shared.identity import own_identity
    from sidecar.failure import Failure
    from sidecar.home import Home
    from sidecar.link.client import ClientError
    from sidecar.private_files import HomeError
    from sidecar.read.wording import counted


async def doctor(
    run: Run,
    fix: Annotated[bool, typer.Option("--fix", help="Fix what can be fixed, and print each change.")] = False,
) -> int:
    """Find what keeps sessions from being recorded, and suggest fixes.

    Checks OpenCode, the plugin, the home, the sidecar, the log, the clock and the disk. Exits with 1 if there is a
    problem.
    """
    out = run.out
    home, command = run.any_home, executable()
    problems = repairs = 0
    async for check in diagnose(home, command, own_identity()):
        mended, failed = await _mend(home, command, check) if fix and check.fix else (None, None)
        problems += check.level == "problem" and mended is None
        repairs += mended is not None
        if out.json:
            out.object(check.as_json() | ({"fixed": mended, "failed": failed} if fix else {}))
            continue
        style = {"ok": "", "note": "yellow", "problem": "bold red"}[check.level]
        out.prose(f"{check.level:9}", f"{check.name}: {check.text}", style)
        if mended is not None:
            out.prose(" " * 9, f"fixed: {mended}", "green")
        elif check.hint:
            out.prose(" " * 9, f"not fixed: {failed}" if failed else check.hint, "dim")
    if not out.json:
        before = f"{counted(repairs, 'finding')} fixed, " if repairs else ""
        number = counted(problems, "problem") if problems else "no problems"
        out.text(f"{before}{number} {'left' if repairs else 'found'}", "bold")
    return 1 if problems else 0


async def _mend(home: Home, command: list[str], check: Check) -> tuple[str | None, str | None]:
    """Return what was done about a finding, or why nothing was."""
    from sidecar.care.checks.repairs import mend

    assert check.fix is not None
    try:
        return await mend(home, command, check.fix), None
    except (HomeError, Failure, ClientError) as error:
        return None, str(error)
    except OSError as error:
        return None, f"{check.fix.path}: {error.strerror}"
