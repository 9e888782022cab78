"""``import``: record the sessions that OpenCode had before ``install``, or that another home exported."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from sidecar.cli.shared.command import RUNS, Run
from sidecar.failure import Failure

if RUNS:
    from sidecar.care.checks.opencode import output_of
    from sidecar.cli.printing.output import Output
    from sidecar.cli.shared.control import ask
    from sidecar.cli.shared.identity import own_identity
    from sidecar.config import load_config
    from sidecar.home import Home
    from sidecar.read.find_by_id import ask_catalog, open_reader
    from sidecar.read.wording import counted
    from sidecar.record.exclusion import Exclusion
    from sidecar.record.history import START_SECONDS, import_opencode_1

CUT_OFF = "what was imported stays; it is safe to run the same command again, which continues the import"


async def import_(
    run: Run,
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]", help="A file written by `export`.", exists=True, dir_okay=False, resolve_path=True
        ),
    ] = None,
    opencode: Annotated[
        bool, typer.Option("--opencode", help="Import the sessions of OpenCode 1 and 2 on this machine.")
    ] = False,
) -> None:
    """Record the sessions from before `install`, or those in a file that `export` wrote.

    Marks these sessions as history, which agents do not receive. Adds only what the log lacks, so running it again is
    safe. With --opencode, starts an OpenCode 1 server without plugins to read its sessions. For OpenCode 2 sessions,
    start OpenCode first.
    """
    if (file is None) is not opencode:
        raise typer.BadParameter("give FILE or `--opencode`")
    out, home = run.out, run.own_home
    home.check_kind()
    if file is not None:
        await _file(out, home, file)
        return
    one, two = await _opencode_1(home), await _opencode_2(home)
    if out.json:
        out.object({"opencode_1": one, "opencode_2": two})
        return
    if one is None and not two["services"]:
        hint = "install OpenCode 1, or start OpenCode 2 with the plugin"
        raise Failure("no-history", f"OpenCode 1 is not on the PATH, and no OpenCode 2 service is connected: {hint}")
    for name, found in (("1", one), ("2", two if two["services"] else None)):
        if found is not None:
            out.text(f"OpenCode {name}: {_history_text(found)}")


async def _file(out: Output, home: Home, file: Path) -> None:
    done = await ask(home, "import_file", {"path": str(file)}, CUT_OFF)
    known = f", {done['known']} were already in the log" if done["known"] else ""
    text = f"{counted(done['added'], 'record')} imported{known}"
    if done["forgotten"]:
        text += f"\n{done['forgotten']} were skipped: their content was forgotten before the export"
    out.result(done, text)


def _history_text(found: dict[str, Any]) -> str:
    count = found["sessions"]
    if not count:
        return "nothing new to import"
    records = found.get("records")
    more = f", {counted(records, 'record')}" if records is not None else ""
    return f"{counted(count, 'old session')} imported{more}"


async def _opencode_1(home: Home) -> dict[str, Any] | None:
    """Import the sessions of OpenCode 1 and return how many are new; ``None`` if OpenCode 1 is not on the PATH."""
    program = shutil.which("opencode")
    if program is None:
        return None
    version = output_of([program, "--version"], START_SECONDS)
    if version is None:
        raise Failure("no-history", f"`{program} --version` does not answer: run this command yourself to see why")
    if not version.startswith("1."):
        return None
    excludes = Exclusion(load_config(home.config_path).capture.exclude).covers
    known = await _known(home)
    _, played = await import_opencode_1(home, program, known, excludes=excludes, nonce=own_identity().nonce)
    if played is None or not played.added:
        return {"sessions": 0, "records": 0}  # what OpenCode has, such as a session without a prompt, makes no record
    return {"sessions": len(await _known(home) - known), "records": played.added}


async def _opencode_2(home: Home) -> dict[str, Any]:
    return await ask(home, "import_history", {}, CUT_OFF)


async def _known(home: Home) -> set[str]:
    """The sessions with records in the log."""
    return await ask_catalog(open_reader(home.store_path), lambda catalog: {*catalog.sessions})
