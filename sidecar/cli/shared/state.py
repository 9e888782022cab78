"""What ``status`` shows: the report of the running sidecar, or the state of the log and the spool if none is
running."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from sidecar.care.checks.check import Survey, has_defaults
from sidecar.care.checks.home import page_checks
from sidecar.care.checks.table import glance
from sidecar.care.checks.team import team_words
from sidecar.care.checks.tracing import traces_words
from sidecar.cli.printing.output import Output
from sidecar.cli.shared.identity import own_identity
from sidecar.cli.shared.nats import OFF, at_rest, machines_words, mirror_words, nats_words
from sidecar.cli.shared.project import waiting_lines
from sidecar.home import Home
from sidecar.read.wording import bytes_text, counted, local_time, stored_text
from sidecar.record.backlog import backlog
from streams.errors import StreamError
from streams.log.reader import LogReader
from streams.query import describe_span


async def gather_status(home: Home) -> dict[str, Any]:
    """The report of the running sidecar, or, if none is running, the state of the log and the spool.

    ``log.head`` is a position, null if the log cannot be opened; ``log.pruned`` is the number of records up to that
    position that were removed; ``log.damaged`` says that one of the problems is about the log; ``log.journal`` is
    what the journal holds (see ``LogStore.waiting``). Keys: ``home, running, sidecar, links, counts, log, spool, nats,
    otel, team, pages, waiting, gaps, cut, asks, work, verdict, problems, notes``; ``cut`` counts the records with a
    text that was too long to keep whole; ``sidecar`` is null if no sidecar answers; ``nats`` is null if the
    configuration or the store cannot be read. ``verdict`` is a text; ``problems`` and ``notes`` are the findings of the
    quick checks of ``doctor``, ``asks`` and ``work`` are lists of texts. ``otel`` and ``team`` are null without
    sidecar, endpoint or database, ``pages`` without a sidecar.
    """
    scene, checks = await glance(home, own_identity())
    survey, found = scene.survey, dict(scene.answer or _STOPPED)
    found["log"] = _log(found.get("log") or {}, survey)
    if scene.answer is None:
        found["spool"] = backlog(home.spool_path)
        # Do not wait again for a store that could not be opened.
        found["nats"] = _nats_stopped(home) if survey.sums is not None else None
    texts: dict[str, list[str]] = {"problem": [], "note": [], "ok": []}
    for check in checks:
        # A more precise reason for a failed start may be among the problems already.
        if check.name != "start" or not texts["problem"]:
            texts[check.level].append(f"{check.name}: {'; '.join(filter(None, (check.text, check.hint)))}")
    found |= {"asks": [], "work": [], "gaps": 0, "cut": 0}
    if survey.sums is not None:
        reader = LogReader(home.store_path)
        found |= {"asks": await waiting_lines(reader), "gaps": survey.gaps, "cut": survey.sums.cut}
        found["work"] = await _work(reader) if survey.has_work else []
    problems, notes = texts["problem"], texts["note"]
    verdict = "Recording works, but:" if notes or found["asks"] else "All is well."
    if problems:
        verdict = "Not installed:" if not scene.is_installed and len(problems) == 1 else "Something is wrong:"
    found |= {"verdict": verdict, "problems": problems, "notes": notes}
    return {"home": str(home.path), "running": home.running() is not None, **found}


async def _work(reader: LogReader) -> list[str]:
    """What background work runs and waits, and what nobody has seen, in words."""
    from sidecar.background.people import sentences
    from sidecar.background.reading import read_intents, read_messages

    counts = Counter(sentences.state_of(each) for each in (await read_intents(reader)).unfinished())
    lines = [", ".join(f"{count} {state}" for state, count in counts.items())] if counts else []
    unseen = (await read_messages(reader)).unheard()
    lines += [f"{counted(unseen, 'message')} not seen yet; `durable-stream notices` lists them"] if unseen else []
    return lines


def _nats_stopped(home: Home) -> dict[str, Any] | None:
    if has_defaults(home):
        return dict(OFF)
    from sidecar.config import ConfigError, load_config

    try:
        return at_rest(load_config(home.config_path).nats)
    except (ConfigError, StreamError, OSError):
        return None  # the reason is already among the problems


def _log(answer: Mapping[str, Any], survey: Survey) -> dict[str, Any]:
    if survey.sums is None:
        return {"head": None, "streams": None, "last_ts": None, "journal": None, **answer, "pruned": 0, "damaged": True}
    known = {
        "head": survey.head,
        "streams": survey.streams,
        "last_ts": survey.sums.last_ts,
        "journal": survey.journal,
    }
    return {**known, **answer, "pruned": survey.pruned, "damaged": False}


_STOPPED: Final[dict[str, Any]] = {
    "sidecar": None,
    "links": [],
    "counts": {},
    "waiting": 0,
    "otel": None,
    "team": None,
    "pages": None,
}


def print_status(out: Output, found: dict[str, Any]) -> None:
    """The status for a person: the verdict first, then the facts."""
    problems, notes = found["problems"], found["notes"]
    out.text(found["verdict"], "bold red" if problems else "bold green")
    for problem in problems:
        out.prose("  ! ", problem, "red")
    for note in notes:
        out.prose("  - ", note, "yellow")
    for ask in found["asks"]:
        out.prose("  ? ", ask, "bold yellow")
    out.text()
    sidecar, links, log = found["sidecar"], found["links"], found["log"]
    rows = [("home", found["home"])]
    if sidecar:
        up = describe_span(sidecar.get("uptime_ms") or 0)
        rows.append(
            ("sidecar", f"running for {up}, pid {sidecar['pid']}, port {sidecar['port']}, {sidecar['version']}")
        )
    else:
        starts = "" if problems else "; OpenCode starts it when it needs it"
        rows.append(("sidecar", "does not answer" if found["running"] else f"not running{starts}"))
    rows += [("" if number else "linked", text) for number, text in enumerate(_linked(found))]
    if sidecar and not links:
        rows.append(("linked", "no OpenCode"))
    rows.append(("log", _log_line(log)))
    spool = found["spool"]
    rows.append(
        ("spool", f"{counted(spool['files'], 'file')}, {bytes_text(spool['bytes'])}" if spool["files"] else "empty")
    )
    nats = found.get("nats") or {"mode": "off"}
    if nats["mode"] != "off":
        rows.append(("nats", nats_words(nats, runs=bool(sidecar))))
        rows += [("mirror", mirror_words(nats["mirror"]))] if nats["mirror"] else []
        rows += [("machines", machines_words(nats["machines"]))] if nats["machines"] else []
    if found.get("otel"):
        rows.append(("traces", traces_words(found["otel"])))
    if found.get("team"):
        rows.append(("team", team_words(found["team"])))
    rows += [("pages", check.text) for check in page_checks(found) if not check.hint]
    rows.append(
        ("waiting", f"{found['waiting']} hooks for their counterpart or parent" if found["waiting"] else "nothing")
    )
    rows += [("" if number else "work", text) for number, text in enumerate(found["work"])]
    lost = [f"{counted(found['gaps'], 'gap')} recorded"] if found["gaps"] else []
    lost += ["hooks of OpenCode that no spool has: see above"] if spool["marks"] else []
    rows.append(("lost", "; ".join(lost) or "nothing"))
    if found.get("cut"):
        rows.append(("cut", f"{counted(found['cut'], 'record')} with a text of more than 8 MiB, kept in part"))
    for name, value in rows:
        out.prose(f"{name:9}", value)


def _log_line(log: Mapping[str, Any]) -> str:
    if log["head"] is None:
        return "could not be read: see above"
    last = f", last at {local_time(log['last_ts'])}" if log.get("last_ts") else ""
    streams = f" in {counted(log['streams'], 'stream')}" if log.get("streams") is not None else ""
    damaged = "; damaged: see above" if log["damaged"] else ""
    return f"{stored_text(log['head'] + 1 - log['pruned'], log['pruned'])}{streams}{last}{damaged}"


def _linked(found: Mapping[str, Any]) -> list[str]:
    """A line for each linked OpenCode process. The plugin of a process links once for each directory."""
    read = {service["registration"] for service in found.get("services") or [] if service["state"] == "read"}
    processes: dict[int, list[Mapping[str, Any]]] = {}
    for link in found["links"]:
        processes.setdefault(link["pid"], []).append(link)
    lines = []
    for pid, links in processes.items():
        named = f"OpenCode {links[0].get('opencode_version') or ''}".rstrip()
        if service := links[0].get("service"):
            lines.append(f"{named}, its service, pid {pid}, {'read' if service in read else 'not read'}")
        elif pid in (found.get("headless") or ()):
            lines.append(f"{named}, headless, for background work, pid {pid}")
        else:
            first, *others = dict.fromkeys(link["directory"] for link in links)
            more = f" and {len(others)} more" if others else ""
            silent = "" if any(link.get("delivers", True) for link in links) else ", no hooks yet"
            lines.append(f"{named} in {first}{more}, pid {pid}{silent}")
    return lines
