"""OpenCode's own background agents are told apart from other children, with their state, cost and parent."""

from __future__ import annotations

from sidecar.read.catalog import Catalog
from sidecar.read.host_agents import host_agents
from streams.store import Record
from tests.bridge.opencode.playing2 import play2
from tests.sidecar.read.conversations import announced_late


def catalog_of(name: str) -> Catalog:
    catalog = Catalog()
    for position, event in enumerate(play2(name).log.events.values()):
        catalog.apply(Record(event=event, offset=position, position=position, hash=""))
    return catalog


def test_an_agent_has_the_outcome_of_its_own_turn_and_its_parent() -> None:
    catalog = catalog_of("background")
    rows = host_agents(catalog)
    assert [(row["state"], row["title"], row["turns"]) for row in rows] == [("completed", "bg", 1), ("failed", "bg", 1)]
    assert {row["parent"] for row in rows} == {root.id for root in catalog.roots()}


def test_an_agent_that_became_known_late_is_one_too() -> None:
    for name in ("background", "subagents"):
        catalog = Catalog()
        for position, event in enumerate(announced_late(list(play2(name).log.events.values()))):
            catalog = Catalog.load(catalog.dump())
            catalog.apply(Record(event=event, offset=position, position=position, hash=""))
        assert host_agents(catalog) == host_agents(catalog_of(name))


def test_a_child_in_the_foreground_is_none() -> None:
    for name in ("subagent", "subagents", "tools"):
        assert host_agents(catalog_of(name)) == []


def test_a_snapshot_keeps_it() -> None:
    catalog = catalog_of("background")
    kept = {session.id for session in Catalog.load(catalog.dump()).sessions.values() if session.is_background}
    assert kept == {row["id"] for row in host_agents(catalog)}
