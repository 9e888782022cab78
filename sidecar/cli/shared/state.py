"""What ``status`` shows: the report of the running sidecar, or the state of the log and the spool if none is
running."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from sidecar.care.checks.agents import agent_notes
from sidecar.care.checks.asking import (
    CONFIG_CHANGED,
    NotAsked,
    SidecarSilent,
    ask_sidecar,
    refused_plugin,
    torn_files,
)
from sidecar.care.checks.check import has_defaults
from sidecar.care.checks.home import marks_text, page_checks
from sidecar.care.checks.nats import reserved_keys
from sidecar.care.checks.recording import silence_text
from sidecar.care.checks.table import NOT_INSTALLED, quick_checks
from sidecar.care.checks.tracing import traces_words
from sidecar.cli.printing.output import Output
from sidecar.cli.shared.command import explain
from sidecar.cli.shared.identity import own_identity
from sidecar.cli.shared.nats import OFF, at_rest, mirror_words, nats_words
from sidecar.cli.shared.project import waiting_lines
from sidecar.home import Home
from sidecar.read.catalog import Catalog
from sidecar.read.select import catalog_of
from sidecar.read.wording import WAY_OUT, bytes_text, counted, kept_text, local_time, waiting_text
from sidecar.record.backlog import backlog
from streams.errors import StreamError
from streams.log.reader import LogReader
from streams.query import describe_span

WORKING: Final = "agent/intents"
"""The stream of the agent that knows the background work."""

RINGING: Final = "agent/messages"

RECENT_MS: Final = 86_400_000
"""How long something that failed is shown."""

MOST_SHOWN: Final = 3


async def gather_status(home: Home) -> dict[str, Any]:
    """The report of the running sidecar, or, if none is running, the state of the log and the spool.

    ``log.head`` is a position, null if the log cannot be opened; ``log.pruned`` is the number of records up to that
    position that were removed; ``log.damaged`` says that one of the problems is damage to the log; ``log.journal`` is
    what the journal holds (see ``LogStore.waiting``). Keys: ``home, running, sidecar, links, counts, log, spool, nats,
    otel, pages, held, gaps, cut, asks, work, verdict, problems, notes``; ``cut`` is the number of records with a text
    that was too long to keep whole; ``sidecar`` is null if no sidecar answers; ``nats`` is null if the configuration or
    the store cannot be read. ``verdict`` is a text; ``problems``, ``notes``, ``asks`` and ``work`` are lists of texts.
    ``otel`` is null without sidecar or endpoint, ``pages`` without a sidecar.
    """
    problems: list[str] = []
    notes: list[str] = []
    reader: LogReader | None = None
    with suppress(StreamError, OSError):  # the parts of the report that need it say why it cannot be opened
        reader = LogReader(home.store_path)
    info = home.running()
    found: dict[str, Any] | None = None
    if info is not None:
        try:
            found = await ask_sidecar(home, "status", own_identity().nonce)
        except NotAsked as error:
            if all(check.level != "problem" for check in quick_checks(home)):
                problems.append(str(error))
        except SidecarSilent as error:
            problems.append(f"the sidecar (pid {info.pid}) does not answer: {error}")
    elif (unlocked := home.unlocked()) is not None:
        problems.append(
            f"the sidecar (pid {unlocked.pid}) is still running, but its lock file was deleted; stop it with "
            "`durable-stream stop`"
        )
    if found is not None and (refused := refused_plugin(found)) is not None:
        problems.append("; ".join(refused))
    if found is not None and found.get("config_changed"):
        notes.append(": ".join(CONFIG_CHANGED))
    if found is not None and (closed := found.get("door", {}).get("unproved_closed")):
        notes.append(f"{counted(closed, 'connection')} closed to make room: too many did not authenticate")
    if found is not None and found.get("nats") and found["nats"]["problem"]:
        notes.append(f"NATS: {found['nats']['problem']}")
    mirror = (found or {}).get("nats") and found["nats"].get("mirror")  # type: ignore[index]
    if mirror and mirror["problem"] and mirror["problem"] != found["nats"]["problem"]:  # type: ignore[index]
        notes.append(f"the mirror is waiting: {mirror['problem']}")
    if mirror and (reserved := reserved_keys(mirror)) is not None:
        notes.append("; ".join(reserved))
    if found is not None and found.get("otel") and (found["otel"]["problem"] or found["otel"]["refused"]):
        notes.append(f"traces: {traces_words(found['otel'])}")
    if found is not None:
        notes += [f"{check.text}; {check.hint}" for check in page_checks(found) if check.hint]
        notes += _agent_notes(found)
    if found is None:
        found = {"sidecar": None, "links": [], "counts": {}, "held": 0, "otel": None, "pages": None}
        read, catalog = await _read_stopped(home, reader, problems, notes)
        found |= read
        # Do not wait again for a store that could not be opened.
        found["nats"] = _nats_stopped(home) if found["log"]["head"] is not None else None
    else:
        known = len(problems)
        found["log"]["pruned"], catalog = await _look(home, reader, problems)
        found["log"]["damaged"] = len(problems) > known
    if found["log"].get("damaged"):
        notes.append(f"without a backup, {WAY_OUT}")
    if (waiting := found["log"].get("journal")) is not None:
        notes += filter(None, [waiting_text(waiting)])
    is_installed = True
    for check in quick_checks(home, served=found.get("config_changed") is False):
        is_installed &= check.name != NOT_INSTALLED
        if check.name == "start" and problems:
            continue  # a more precise reason for the failed start is already among the problems
        if (check.level != "ok" and check.name != "token") or check.level == "problem":
            told = f"{check.text}; {check.hint}" if check.hint else check.text
            (problems if check.level == "problem" else notes).append(told)
    torn = torn_files(home.store_path)
    if torn:
        notes.append(
            f"{counted(len(torn), 'torn tail')} set aside in {home.store_path / 'torn'}; nothing acknowledged is lost"
        )
    if catalog is not None:
        found["gaps"] = catalog.gaps()
        notes += [f"something was lost in {text}" for text in catalog.loss_texts()]
    notes += filter(None, [marks_text(found["spool"])])
    if found["sidecar"] is None and found["spool"]["files"]:
        files = counted(found["spool"]["files"], "spool file")
        notes.append(f"{files} to be recorded at the next start of the sidecar")
    found["asks"] = await waiting_lines(reader) if reader is not None and catalog is not None else []
    found["work"] = []
    if reader is not None and catalog is not None and WORKING in catalog.streams:
        found["work"], failed_work = await _work(reader)
        notes += failed_work
    if reader is not None and catalog is not None and RINGING in catalog.streams:
        notes += await _failing(reader)
    if apart := found.get("not_compared"):
        text = f"{counted(apart, 'session')} of OpenCode 2 not compared with its service yet, and may lack something"
        notes.append(f"{text}; `durable-stream doctor` says why")
    notes += filter(None, [silence_text(found)])
    if hung := found.get("hung"):
        ended = f"{counted(hung, 'headless OpenCode')} hung and was ended since the sidecar started"
        notes.append(f"{ended}; `durable-stream intents` shows which work went on in another one")
    found["cut"] = catalog.cut if catalog is not None else 0
    verdict = "Recording works, but:" if notes or found["asks"] else "All is well."
    if problems:
        verdict = "Something is wrong:" if is_installed or len(problems) > 1 else "Not installed:"
    found |= {"verdict": verdict, "problems": problems, "notes": notes}
    return {"home": str(home.path), "running": info is not None, **found}


def _agent_notes(status: Mapping[str, Any]) -> list[str]:
    """The troubles of the agents, except those that ``asks`` has."""
    return [f"{each.text}; {each.hint}" for each in agent_notes(status) if not each.is_asked]


async def _work(reader: LogReader) -> tuple[list[str], list[str]]:
    """What background work runs and waits and what nobody has seen; and what failed in the last day or needs a
    terminal, in words."""
    from sidecar.background.people import teller
    from sidecar.background.reading import read_intents, read_messages

    data = await read_intents(reader)
    since = own_identity().now_ms() - RECENT_MS
    counts = Counter(teller.state_of(each) for each in data.unfinished())
    lines = [", ".join(f"{count} {state}" for state, count in counts.items())] if counts else []
    failed = [i for i in data.intents.values() if i.state in ("failed", "refused") and (i.ended or 0) >= since]
    told = [teller.failure(each) for each in failed[-MOST_SHOWN:]]
    if more := len(failed[:-MOST_SHOWN]):
        told.append(f"{more} more of the background work failed; `durable-stream intents` lists it")
    for each in [intent for intent in data.unfinished() if intent.waits][:MOST_SHOWN]:
        wanted = " and ".join(waited["text"] for waited in teller.waits(each, "", ()))
        go_on = f"`durable-stream intents {each.id} --resume` continues it with what your terminal may do"
        told.append(f"{each.id} waits for {wanted}; {go_on}")
    unseen = (await read_messages(reader)).unheard()
    lines += [f"{counted(unseen, 'message')} not seen yet; `durable-stream notices` lists them"] if unseen else []
    return lines, told


async def _failing(reader: LogReader) -> list[str]:
    """The channels that did not accept their newest message in the last day, in words."""
    from sidecar.background.reading import read_failing

    failing = await read_failing(reader, own_identity().now_ms() - RECENT_MS)
    told = "did not accept the newest message: {}; `durable-stream notify test` tries it again"
    return [f"{name} {told.format(why)}" for name, why in failing.items()]


async def _look(home: Home, reader: LogReader | None, problems: list[str]) -> tuple[int, Catalog | None]:
    """How many records were pruned, and the catalog, read from the files of a log that a running sidecar reports on."""
    try:
        reader = reader or LogReader(home.store_path)
        gone = await reader.removed()
        return sum(each.first_offset for each in gone.values()), (await catalog_of(reader))[0]
    except (StreamError, OSError) as error:
        problems.append(explain(error))
        return 0, None


def _nats_stopped(home: Home) -> dict[str, Any] | None:
    if has_defaults(home):
        return dict(OFF)
    from sidecar.config import ConfigError, load_config

    try:
        return at_rest(home, load_config(home.config_path).nats)
    except (ConfigError, StreamError, OSError):
        return None  # the reason is already among the problems


async def _read_stopped(
    home: Home, reader: LogReader | None, problems: list[str], notes: list[str]
) -> tuple[dict[str, Any], Catalog | None]:
    """The state and the catalog of the log. If it cannot be opened, nothing is counted and nothing else is tried."""
    torn = torn_files(home.store_path)
    log = _UNREADABLE | {"torn": str(torn[-1]) if torn else None}
    catalog = None
    try:
        reader = reader or LogReader(home.store_path)
        log |= {"head": reader.head}
        catalog, fault = await catalog_of(reader)
        gone = await reader.removed()
        log |= {
            "journal": reader.waiting(),
            "streams": len(catalog.streams),
            "last_ts": catalog.last_ts,
            "pruned": sum(each.first_offset for each in gone.values()),
            "damaged": fault is not None,
        }
        if catalog.agents and fault is None:
            from sidecar.background.reading import read_agents  # slow to import

            notes += _agent_notes({"worker": {"agents": await read_agents(reader)}})
        if (cut_off := await reader.cut_off()) is not None:
            notes.append(cut_off)
        if fault is not None:
            problems.append(str(fault))
    except (StreamError, OSError) as error:
        problems.append(explain(error))
        log |= {"damaged": True}
    read = {"log": log, "spool": backlog(home.spool_path), "gaps": 0}
    return read, None if log["damaged"] else catalog


_UNREADABLE: Final[dict[str, Any]] = {
    "head": None,
    "journal": None,
    "streams": None,
    "last_ts": None,
    "pruned": 0,
    "damaged": False,
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
    if found.get("otel"):
        rows.append(("traces", traces_words(found["otel"])))
    rows += [("pages", check.text) for check in page_checks(found) if not check.hint]
    rows.append(
        ("held", f"{found['held']} hooks waiting for their counterpart or parent" if found["held"] else "nothing")
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
    return f"{kept_text(log['head'] + 1 - log['pruned'], log['pruned'])}{streams}{last}{damaged}"


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
        elif pid == found.get("headless"):
            lines.append(f"{named}, headless, for background work, pid {pid}")
        else:
            first, *others = dict.fromkeys(link["directory"] for link in links)
            more = f" and {len(others)} more" if others else ""
            silent = "" if any(link.get("delivers", True) for link in links) else ", no hooks yet"
            lines.append(f"{named} in {first}{more}, pid {pid}{silent}")
    return lines
