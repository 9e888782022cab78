"""The required streams, and how existing ones differ."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.nats.jetstream.stream_plan import (
    COMMANDS,
    DAY_S,
    DEAD,
    EVENTS,
    StreamDefinition,
    different,
    keeps,
    server_version,
    wanted,
)
from bridge.nats.subjects import CommandSubject, L0Subject, RecordSubject
from streams.bus.subjects import dead_letter_subject, overlap

NS = 1_000_000_000
BY_NAME = {definition.name: definition for definition in wanted()}
ALL = list(BY_NAME.values())


def answered(definition: StreamDefinition, **changed: Any) -> dict[str, Any]:
    """The configuration as a server returns it, with its own defaults filled in."""
    config = {
        **definition.config(),
        "max_consumers": -1,
        "num_replicas": 1,
        "sealed": False,
        "deny_delete": False,
        "deny_purge": False,
        "compression": "none",
        "consumer_limits": {},
        **changed,
    }
    return {name: value for name, value in config.items() if value is not None}


def test_the_streams_are_those_of_the_documents() -> None:
    rows = {
        d.name: (d.subjects, d.config()["retention"], d.config()["storage"], d.config()["max_age"] / NS) for d in ALL
    }
    assert rows == {
        "MESHFORGE_EVENTS": (("evt.>",), "limits", "file", 0),
        "MESHFORGE_COMMANDS": (("cmd.>",), "workqueue", "file", 0),
        "cg_cmd_v1": (("cg.v1.*.*.cmd.>",), "workqueue", "file", DAY_S),
        "cg_evt_v1": (("cg.v1.*.*.evt.>",), "limits", "file", 7 * DAY_S),
        "MESHFORGE_DLQ": (("dlq.>",), "limits", "file", 0),
    }


def test_no_two_streams_take_in_one_subject() -> None:
    patterns = [(d.name, subject) for d in wanted() for subject in d.subjects]
    for name, mine in patterns:
        for other, theirs in patterns:
            assert name == other or not overlap(mine, theirs), (mine, theirs)


KEPT_IN = {
    str(RecordSubject("p", "log", "ses_a", "execution.step")): EVENTS,
    str(CommandSubject("p", "w", "oracle", "run")): COMMANDS,
    str(L0Subject("p", "evt", "agent", "ses_a", "step")): "cg_evt_v1",
    str(L0Subject("p", "cmd", "tool", "web", "search")): "cg_cmd_v1",
    dead_letter_subject("oracle_consumer", "cmd.p.w.oracle.run"): DEAD,
    str(L0Subject("p", "str", "agent", "ses_a", "chunk")): None,
    "str.anything.at.all": None,
    str(L0Subject("p", "evt", "agent", "ses_a", "step", ver="v2")): None,
}


def test_each_subject_is_kept_where_it_belongs_and_str_nowhere() -> None:
    for subject, stream in KEPT_IN.items():
        found = keeps(ALL, subject)
        assert (found.name if found is not None else None) == stream


def test_a_stream_that_the_server_describes_in_its_own_words_is_no_different_one() -> None:
    for each in ALL:
        assert different(each, answered(each)) == []
        assert different(each, answered(each, max_msgs=0, description=each.description, compression="s2")) == []


DIFFERENT: dict[str, Any] = {
    **{"max_age": 5 * NS, "max_bytes": 1000, "max_msgs": 10, "max_msgs_per_subject": 1, "max_msg_size": 100},
    **{"subjects": ["evt.>", "more.>"], "discard": "new", "duplicate_window": NS, "no_ack": True, "allow_direct": None},
    **{"allow_atomic": None, "description": "other", "retention": "interest", "storage": "memory", "sealed": True},
    **{"mirror": {"name": "x"}, "sources": [{"name": "x"}], "subject_transform": {"src": "evt.>", "dest": "x.>"}},
    **{"deny_purge": True, "deny_delete": True, "allow_msg_counter": True},
}


@pytest.mark.parametrize("setting", DIFFERENT)
def test_each_setting_that_must_be_otherwise_is_named(setting: str) -> None:
    assert different(BY_NAME[EVENTS], answered(BY_NAME[EVENTS], **{setting: DIFFERENT[setting]})) == [setting]


def test_a_servers_version_is_read() -> None:
    texts = {"2.10.29": (2, 10), "v2.15.0-beta.1": (2, 15), "2.9": (2, 9), "": (0, 0), "dev": (0, 0), "x2.1": (0, 0)}
    assert {text: server_version(text) for text in texts} == texts
