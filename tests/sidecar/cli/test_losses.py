"""What was lost is told where a person looks: in which session, how much, why, and what to do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sidecar.home import Home
from sidecar.read.find_by_id import catalog_of, open_reader
from sidecar.read.losses import _REASONS
from streams.event import StreamEvent
from tests.sidecar.checking import look, status
from tests.sidecar.cli.helpers import append, run
from tests.streams.builders import event

WORDS = ("memory was full", "4 hooks lost", "next turn")


def begun(session: str, boot: str) -> StreamEvent:
    payload = {"session": session, "lineage": "root", "title": "Work", "directory": "/home/ada/shop"}
    return event(stream=session, type_="lifecycle.session.created", payload=payload, metadata={"boot": boot})


def gap(reason: str, lost: int, boot: str, session: str | None = None) -> StreamEvent:
    payload: dict[str, Any] = {"reason": reason, "lost": lost} | ({"session": session} if session else {})
    return event(stream=session or "system", type_="capture.gap", payload=payload, metadata={"boot": boot})


@pytest.fixture
def lossy_home(healthy_home: Home) -> Home:
    records = [begun("ses_whole", "b0"), begun("ses_full", "b1"), gap("memory_full", 3, "b1")]
    records += [begun("ses_cut", "b2"), gap("text_cut", 1, "b2", "ses_cut"), gap("memory_full", 1, "b1")]
    asyncio.run(append(healthy_home.store_path, [[record] for record in records]))
    return healthy_home


def test_status_and_doctor_tell_the_session_the_loss_the_reason_and_the_remedy(lossy_home: Home) -> None:
    told: list[str] = status(lossy_home)["notes"]  # type: ignore[assignment]
    [full] = [note for note in told if "ses_full" in note]
    assert all(word in full for word in WORDS)
    assert len([note for note in told if "ses_cut" in note]) == 1 and not any("ses_whole" in note for note in told)
    found = run(lossy_home.path, "doctor", "--json").objects()
    assert full in [f"{check['name']}: {check['text']}" for check in found]
    assert look(lossy_home)["gaps"].level == "note"
    assert "Nothing is wrong" not in run(lossy_home.path, "status").out


# Every way in which something can be lost, and how many hooks it costs if that is known.
WAYS = {"memory_full": 3, "unserialisable": 1, "spool_damaged": 2, "feed_broken": 0, "not_kept": 71, "text_cut": 1}


@pytest.mark.parametrize("reason", WAYS)
def test_each_way_to_lose_is_counted_and_told_with_its_reason(healthy_home: Home, reason: str) -> None:
    asyncio.run(append(healthy_home.store_path, [[begun("ses_full", "b1")], [gap(reason, WAYS[reason], "b1")]]))
    found = status(healthy_home)
    [told] = [note for note in found["notes"] if "ses_full" in note]  # type: ignore[attr-defined]
    assert (found["gaps"], reason in _REASONS) == (1, True)
    assert _REASONS[reason][0] in told and (not WAYS[reason] or reason == "text_cut" or str(WAYS[reason]) in told)


@pytest.mark.parametrize("where", ["spool/", "../home."])
def test_status_and_doctor_never_say_nothing_is_lost_while_a_mark_stands(healthy_home: Home, where: str) -> None:
    home = healthy_home.path.rename(healthy_home.path.with_name("home"))
    (home / f"{where}{'a' * 32}-{'1' * 16}-2147483646.lost").touch()
    assert run(home, "status", "--json").objects()[0]["spool"]["marks"] == 1
    assert "hooks of OpenCode that no spool has" in run(home, "status").out
    [spool] = [check for check in run(home, "doctor", "--json").objects() if check["name"] == "spool"]
    assert spool["level"] == "problem"


def test_streams_and_read_tell_it_of_the_session_that_lacks_something(lossy_home: Home) -> None:
    rows = {row["stream_id"]: row["gaps"] for row in run(lossy_home.path, "streams", "--json").objects()}
    assert {name: count for name, count in rows.items() if count} == {"ses_full": 2, "ses_cut": 1}
    assert "2 gaps" in run(lossy_home.path, "streams").out
    shown = {name: run(lossy_home.path, "read", name).out for name in ("ses_full", "ses_cut", "ses_whole")}
    assert all(word in shown["ses_full"] for word in WORDS) and "ask again" in shown["ses_cut"]
    assert "lost" not in shown["ses_whole"]


async def test_a_loss_without_a_session_waits_for_the_first_session_of_its_process(lossy_home: Home) -> None:
    later = [[gap("spool_damaged", 2, "b3")], [gap("spool_damaged", 5, "b4")], [begun("ses_late", "b3")]]
    await append(lossy_home.store_path, later)
    catalog, _ = await catalog_of(open_reader(lossy_home.store_path))
    assert catalog.gaps("ses_late") == 1 and "2 hooks" in catalog.loss_texts({"ses_late"})[0]
    assert len(catalog.loss_texts()) == 4, "three sentences, and one that says how many more there are"
    assert catalog.gaps() == 5
