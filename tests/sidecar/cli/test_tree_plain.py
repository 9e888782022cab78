"""``tree`` in a pipe: what no turn started stands below the session, not below its last turn."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sidecar.cli.look.tree import _plain
from sidecar.read.catalog import Catalog
from sidecar.read.tree import Tree
from streams.store import Record
from tests.sidecar.read.conversations import happened


def test_a_session_that_no_turn_started_is_indented_like_a_turn() -> None:
    catalog, lines = Catalog(), []
    tree = Tree(catalog)
    events = [
        happened("lifecycle.session.created", lineage="root"),
        happened("turn.started", message="m"),
        happened("agent.spawned", turn="m", child="ses_called", part="p"),
        happened("lifecycle.session.created", session="ses_called", parent="ses_root", lineage="child"),
        happened("turn.ended", message="m", outcome="completed"),
        happened("lifecycle.session.created", session="ses_spawned", parent="ses_root", lineage="child"),
    ]
    for position, event in enumerate(events):
        for fold in (catalog, tree):
            fold.apply(Record(event, position, position, ""))
    out: Any = SimpleNamespace(text=lines.append)
    _plain(out, tree, catalog.sessions["ses_root"], 0)
    indents = {line.split()[1]: len(line) - len(line.lstrip()) for line in lines if "session" in line}
    assert indents == {"ses_root": 0, "ses_called": 4, "ses_spawned": 2}
