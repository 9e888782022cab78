"""``status`` says that all is well only if nothing waits for a person, failed lately, is not compared, or was lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from copy import deepcopy
from itertools import combinations
from typing import Any

import pytest

from sidecar.background.hosts.identity import NOBODY
from sidecar.care.checks import running_sidecar, work
from sidecar.home import Home, SidecarInfo
from sidecar.read.ask_text import checkpoint_id
from sidecar.read.wording import MANY_WAITING
from streams.event import StreamEvent
from streams.log.reader import LogReader
from tests.sidecar.checking import status
from tests.sidecar.cli.helpers import append, run
from tests.sidecar.cli.test_losses import begun, gap
from tests.sidecar.cli.test_top import intent, made_by
from tests.streams.builders import event, events
from tests.streams.unmoved import nothing_moves

NOW = time.time_ns() // 1_000_000
BEGINS = ("intent.started", {"session": "ses_x", "parent": None, "ts": NOW})
SHOP = {"directory": "/shop", "ts": NOW}


def asks() -> list[StreamEvent]:
    ask = {"session": "ses_asks", "state": "asked", "kind": "permission", "request": "per_1", "permission": "bash"}
    return [begun("ses_asks", "b1"), event(stream="ses_asks", type_="workflow.checkpoint", payload=ask)]


def model_asks() -> list[StreamEvent]:
    ask = {"message": "chk_model", "kind": "ask", "session": "ses_y", "text": "Ship?", "to": "ses_y"}
    return [made_by("messages", "message.queued", **ask, **SHOP)]


def fails(name: str, ts: int = NOW, end: str = "intent.failed") -> list[StreamEvent]:
    return intent(name, BEGINS, (end, {"ts": ts, "reason": "HTTP 401", "code": "error"}), title=name, **SHOP)


def unhosted(name: str = "int_alone", **about: Any) -> list[StreamEvent]:
    steps = ("intent.starting", {}), ("intent.unhosted", {"ts": NOW})
    return intent(name, *steps, title="alone", **SHOP, **about)


def channel(ts: int = NOW) -> list[StreamEvent]:
    payload = {"message": "alr_1", "channel": "ntfy:1f3a9c2e", "error": "404", "attempt": 3}
    about: dict[str, Any] = {"actor": "messages", "metadata": {"role": "output"}, "payload": payload}
    return [event(stream="agent/messages", type_="message.failed", ts=ts, **about)]


def loses() -> list[StreamEvent]:
    return [begun("ses_lost", "b1"), gap("memory_full", 3, "b1", "ses_lost")]


KINDS: dict[str, tuple[Callable[[], list[StreamEvent]], str, str]] = {
    "waits": (asks, "asks", f"durable-stream checkpoints {checkpoint_id('ses_asks', 'per_1')} --answer"),
    "waits for a model": (model_asks, "asks", "durable-stream checkpoints chk_model --answer"),
    "failed": (lambda: fails("int_failed"), "notes", "durable-stream intents int_failed"),
    "waits for OpenCode": (unhosted, "notes", "durable-stream intents int_alone --resume"),
    "of nobody": (lambda: unhosted("int_own", environment=NOBODY), "notes", "durable-stream intents int_own --resume"),
    "not sent": (channel, "notes", "durable-stream notify test"),
    "lost": (loses, "notes", "after the session's next turn"),
    "not compared": (list, "notes", "durable-stream doctor"),
}
"""Each kind: what records it, where the report has its one sentence, and the command that tells more or mends it."""

ALL = [(), *((each,) for each in KINDS), *combinations(KINDS, len(KINDS))]


@pytest.mark.parametrize("kinds", ALL, ids=lambda kinds: " + ".join(kinds) or "nothing")
def test_all_is_well_only_if_nothing_is_to_be_said(
    healthy_home: Home, monkeypatch: pytest.MonkeyPatch, kinds: tuple[str, ...]
) -> None:
    made = [record for kind in kinds for record in KINDS[kind][0]()]
    asyncio.run(append(healthy_home.store_path, [[record] for record in made]))
    if "not compared" in kinds:
        answering(monkeypatch, not_compared=2)
    found: Any = status(healthy_home)
    assert found["problems"] == []
    assert (found["verdict"] == "All is well.") == (not kinds), found
    for kind in kinds:
        _, where, command = KINDS[kind]
        assert [command in said for said in found[where]].count(True) == 1, (kind, found[where])
    assert len(found["notes"]) + len(found["asks"]) == len(kinds), "one sentence each"


def answering(monkeypatch: pytest.MonkeyPatch, **more: object) -> None:
    """A sidecar runs and answers this."""
    answer = {"sidecar": {"pid": 1, "port": 2, "version": "0.1.0"}, "log": {"head": 0}, "links": [], "waiting": 0}
    answer |= {"spool": {"files": 0, "bytes": 0, "marks": 0}, "config_changed": False, **more}

    async def asked(*_: object) -> dict[str, Any]:
        return deepcopy(answer)

    monkeypatch.setattr(running_sidecar, "ask_sidecar", asked)
    monkeypatch.setattr(Home, "running", lambda home: SidecarInfo(1, 2, "b" * 32, "0.1.0", 1, 0))


@pytest.mark.parametrize(("records", "fault"), [(7, None), (7, "log.db is held"), (MANY_WAITING + 1, None)])
def test_a_journal_that_grows_is_told_with_its_size_and_the_reason(
    healthy_home: Home, monkeypatch: pytest.MonkeyPatch, records: int, fault: str | None
) -> None:
    journal = {"records": records, "files": 1, "bytes": 5 * 1024 * 1024, "fault": fault}
    answering(monkeypatch, log={"head": records, "journal": journal})
    found: Any = status(healthy_home)
    assert found["log"]["journal"] == journal
    if records == 7 and fault is None:
        assert found["verdict"] == "All is well."
        return
    (said,) = found["problems" if fault else "notes"]
    assert f"{records} records" in said and "5.0 MiB" in said and (fault or "") in said


def test_without_a_sidecar_status_counts_what_waits_in_the_journal(healthy_home: Home) -> None:
    before = LogReader(healthy_home.store_path).head
    with nothing_moves():
        asyncio.run(append(healthy_home.store_path, [events(3, prefix="more")]))
    found: Any = status(healthy_home)
    assert found["log"]["journal"]["records"] == 3 and found["log"]["head"] == before + 3
    assert found["verdict"] == "All is well.", "the next start moves them"


def test_what_failed_more_than_a_day_ago_is_over(healthy_home: Home) -> None:
    old = NOW - work.RECENT_MS - 60_000
    made = [*fails("int_old", old), *channel(old)]
    asyncio.run(append(healthy_home.store_path, [[record] for record in made]))
    assert run(healthy_home.path, "status").out.startswith("All is well.")
    many = [record for number in range(5) for record in fails(f"int_{number}", end="intent.failed")]
    asyncio.run(append(healthy_home.store_path, [[record] for record in many]))
    said: Any = status(healthy_home)["notes"]
    assert len(said) == work.MOST_SHOWN + 1 and "2 more" in said[-1]
