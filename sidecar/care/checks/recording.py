"""Checks that recording works: the sidecar, its links, the log, and gaps in the log."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from sidecar.care.checks.check import Check, Scene, Survey
from sidecar.care.checks.running_sidecar import torn_files
from sidecar.home import Home
from sidecar.read.find_by_id import ask_catalog
from sidecar.read.kinds import WORK
from sidecar.read.story.catalog import Catalog
from sidecar.read.wording import WAY_OUT, bytes_text, counted, lacking_text, stored_text, waiting_text
from streams.errors import CorruptLog, StreamError
from streams.log.completeness import HEAD_FILE
from streams.log.reader import LogReader
from streams.query import describe_span
from streams.store import NOTHING

TAIL_RECORDS = 2000

MAX_COUNTED = 100_000
"""Maximum number of files whose size is added up."""

MAX_NAMED = 5
"""Maximum number of copies that are named."""

EVERY_FAULT: Final = f"`durable-stream verify` shows every fault; {WAY_OUT}"


async def survey(home: Home, now_ms: int, *, quick: bool = False) -> Survey:
    """Read what the checks need from the log; for the ``quick`` checks, without the records themselves."""
    newest, last_ts = 0, None
    try:
        reader = LogReader(home.store_path)
        head = reader.head
        if not quick:
            async for record in reader.read_all(after=max(head - TAIL_RECORDS, NOTHING)):
                newest += 1
                last_ts = max(last_ts or 0, record.event.ts)
        pruned = sum(gone.first_offset for gone in (await reader.removed()).values())
        known = await ask_catalog(reader, _known)
        has_agents = known.pop("has_agents")
        of_agents = await _of_agents(reader, now_ms, quick=quick) if has_agents else {}
        fault, torn = (None, None) if quick else await _quick_findings(home)
        journal, cut_off = await asyncio.to_thread(reader.waiting), await reader.cut_off()
    except CorruptLog as error:
        return Survey(fault=str(error), hint=EVERY_FAULT)
    except StreamError as error:
        return Survey(fault=str(error))
    except OSError as error:
        return Survey(fault=f"cannot be read: {error.strerror} ({error.filename or home.store_path})")
    found = Survey(head, newest, last_ts, fault=fault, hint=EVERY_FAULT, torn=torn, journal=journal, pruned=pruned)
    return found._replace(cut_off=cut_off, **known, **of_agents)


def _known(catalog: Catalog) -> dict[str, Any]:
    """The survey's part about sessions, and whether the log has streams of agents."""
    return {
        "has_agents": bool(catalog.agents),
        "has_work": WORK in catalog.agents,
        "directories": tuple(catalog.directories()),
        "losses": tuple(catalog.loss_texts()),
        "sums": catalog.sums,
        "streams": len(catalog.streams),
        "gaps": catalog.gaps(),
    }


async def _of_agents(reader: LogReader, now_ms: int, *, quick: bool) -> dict[str, Any]:
    """What the streams of agents tell."""
    from sidecar.background.reading import read_agents, read_failing, read_intents
    from sidecar.care.checks.work import RECENT_MS, notes_of

    found: dict[str, Any] = {"agents": await read_agents(reader)}
    found["failing"] = await read_failing(reader, now_ms - RECENT_MS if quick else 0)
    work = await read_intents(reader)
    found["work"] = tuple(notes_of(work, now_ms))
    if not quick:
        from sidecar.background.intents.afterwards import copy_of

        copies = [each.copy["name"] for each in work.intents.values() if copy_of(work, each)]
        found["copies"] = tuple(str(reader.store.parent / "copies" / name) for name in copies)
        found["saved"] = sum(bool(each.changes.get("saved")) for each in work.intents.values())
    return found


async def _quick_findings(home: Home) -> tuple[str | None, str | None]:
    """Check the end of the log: a fault that stays, and one that the next start repairs."""
    from streams.log.verify import Verification

    found = [finding async for finding in Verification(home.store_path, quick=True).run()]
    mended = [finding for finding in found if finding.kind == "torn" or Path(finding.file).name == HEAD_FILE]
    wrong = [finding for finding in found if finding not in mended]
    more = f" (and {counted(len(wrong) - 1, 'more fault')})" if len(wrong) > 1 else ""
    return f"{wrong[0]}{more}" if wrong else None, str(mended[0]) if mended else None


def check_sidecar(scene: Scene) -> list[Check]:
    """Whether the sidecar is running and answers."""
    info = scene.home.running()
    if info is None:
        if (unlocked := scene.home.unlocked()) is not None:
            text = f"pid {unlocked.pid} is still running, but its lock file was deleted"
            return [Check("sidecar", "problem", text, "stop it with `durable-stream stop`")]
        return [Check("sidecar", "ok", "not running; OpenCode starts it when needed")]
    if scene.answer is None and not scene.silence:
        text = f"running as pid {info.pid}; this command did not ask it"
        hint = "run `durable-stream doctor` again in a moment; if it shows a problem with the home, fix that first"
        return [Check("sidecar", "note", text, hint)]
    if scene.answer is None:
        hint = "run `durable-stream stop`; OpenCode then starts a new sidecar"
        return [Check("sidecar", "problem", f"pid {info.pid} does not answer: {scene.silence}", hint)]
    up = describe_span((scene.answer.get("sidecar") or {}).get("uptime_ms") or 0)
    return [Check("sidecar", "ok", f"pid {info.pid} on port {info.port} is authenticated; up {up}")]


def check_start(scene: Scene) -> list[Check]:
    """Whether the last sidecar could not start or go on."""
    if scene.home.is_locked():
        return []
    from sidecar.care.logs import failure

    failed = failure(scene.home)
    if failed is None:
        return []
    reason, _, hint = failed[1].partition("; ")
    text = f"the last sidecar failed ({failed[0]}); until one runs, OpenCode's hooks wait in the spool: {reason}"
    mended = "after that, run `durable-stream serve` to see whether it starts"
    return [Check("start", "problem", text, f"{hint or 'fix the cause'}; {mended}")]


def check_log(scene: Scene) -> list[Check]:
    """Whether the head and the newest records are intact."""
    log = scene.survey
    if log.fault is not None:
        return [Check("log", "problem", log.fault, log.hint)]
    if log.head == NOTHING:
        return [Check("log", "note", "nothing recorded yet", "use OpenCode, then run `durable-stream doctor` again")]
    stored = log.head + 1 - log.pruned
    whole = "" if scene.quick else f"; the newest {log.newest} are intact" if stored else "; none is left"
    text = f"{stored_text(stored, log.pruned)}{whole}"
    if log.cut_off is not None and scene.answer is None:
        return [Check("log", "note", text, log.cut_off)]
    if log.torn is not None:
        return [Check("log", "note", f"{text}; {log.torn}", "the next start of the sidecar mends this")]
    return [Check("log", "ok", text)]


def check_journal(scene: Scene) -> list[Check]:
    """Whether the records of the journal get into the database."""
    journal = ((scene.answer or {}).get("log") or {}).get("journal") or scene.survey.journal
    if journal is None or not (text := waiting_text(journal)):
        return []
    hint = "recording goes on, but the journal fills the disk; `durable-stream verify` shows what is wrong with the log"
    return [Check("journal", "problem" if journal["fault"] else "note", text, hint)]


def check_tables(scene: Scene) -> list[Check]:
    """Whether the tables that commands and pages read have all records."""
    journal = ((scene.answer or {}).get("log") or {}).get("journal")
    if journal is None or not (text := lacking_text(journal)):
        return []
    if journal["derived"]["fault"]:
        return [Check("tables", "problem", text, "recording goes on; `durable-stream verify` looks for damage")]
    return [Check("tables", "note", text, "the sidecar makes them in the background: try again soon")]


def check_copies(scene: Scene) -> list[Check]:
    """Whether ended background work left copies behind."""
    left = [Path(each) for each in scene.survey.copies if Path(each).is_dir()]
    if not left:
        return []
    size, is_whole = _size(left)
    room = bytes_text(size) if is_whole else f"more than {bytes_text(size)}"
    text = f"{'1 copy' if len(left) == 1 else f'{len(left)} copies'} of ended background work, {room}"
    names = ", ".join(each.name for each in left[:MAX_NAMED]) + (" …" if len(left) > MAX_NAMED else "")
    hint = f"`durable-stream intents INTENT --discard` removes one ({names}); "
    hint += f"{counted(scene.survey.saved, 'intent')} in all have saved changes, which it removes, too"
    return [Check("copies", "note", text, hint)]


def _size(folders: list[Path]) -> tuple[int, bool]:
    """The size of all files in these folders, and whether all were counted."""
    total = count = 0
    for folder in folders:
        for place, _, files in os.walk(folder):
            for each in files:
                count += 1
                if count > MAX_COUNTED:
                    return total, False
                with suppress(FileNotFoundError):
                    total += Path(place, each).lstat().st_size
    return total, True


def check_torn(scene: Scene) -> list[Check]:
    torn = torn_files(scene.home.store_path)
    if not torn:
        return []
    hint = "these tails were never acknowledged, and OpenCode has sent their content again"
    return [Check("torn tails", "note", f"{len(torn)} set aside in {torn[0].parent}", hint)]


def check_gaps(scene: Scene) -> list[Check]:
    return [Check("gaps", "note", f"something was lost in {text}") for text in scene.survey.losses]
