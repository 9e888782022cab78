"""What a mirror notes goes through its snapshot. Where it resumes: ``tests/sidecar/mirror/test_mirror_recovery.py``."""

from __future__ import annotations

import pytest

from bridge.nats.mirror.state import MIRROR_VERSION, MirrorState
from streams.store import NOTHING, Snapshot
from tests.bridge.nats.records import chained, event

RECORDS = chained([event(n, "human.input", {"session": "ses_a", "text": str(n)}) for n in range(10)])


def test_the_state_survives_its_snapshot() -> None:
    state = MirrorState(rebuild=2, created="then", forgotten={"ses_a": 3})
    for record in RECORDS:
        state.pass_over(record)
    state.notes["pointer"] += 1
    snapshot = state.snapshot()
    assert (snapshot.version, snapshot.position) == (MIRROR_VERSION, 9)
    loaded = MirrorState.of(snapshot)
    assert loaded.snapshot() == snapshot and loaded.contexts.state() == state.contexts.state()
    for garbage in (b"", b"{}", b"[]", snapshot.state[:-1], snapshot.state.replace(b'"rebuild":2', b'"rebuild":{}')):
        with pytest.raises(ValueError, match="valid"):
            MirrorState.of(Snapshot(MIRROR_VERSION, 1, garbage))
    anew = loaded.restarted()
    assert (anew.position, anew.rebuild, anew.forgotten) == (NOTHING, 3, {"ses_a": 3})
