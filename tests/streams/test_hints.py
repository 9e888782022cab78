"""Cursors and snapshots on disk: a damaged or half-written one counts as lost, never as something else."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from streams.store import NOTHING, Snapshot
from streams.stores.hints import Hints


def test_a_damaged_hint_is_no_hint(tmp_path: Path) -> None:
    hints = Hints(tmp_path)
    hints.put_snapshot("lineage", Snapshot(3, 17, b'{"sessions":{}}'))
    hints.advance("mirror", 17)
    for name in ("snapshot-lineage", "cursor-mirror"):
        path = tmp_path / "hints" / name
        whole = path.read_bytes()
        for at in range(len(whole)):
            for damaged in (whole[:at], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]):
                path.write_bytes(damaged)
                assert hints.cursor("mirror") in (NOTHING, 17)
                assert hints.snapshot("lineage", 3) in (None, Snapshot(3, 17, b'{"sessions":{}}'))
                lost = hints.cursor("mirror") == NOTHING or hints.snapshot("lineage", 3) is None
                assert lost, (name, at, damaged)
        path.write_bytes(whole)


def test_a_cursor_that_moves_while_snapshots_are_dropped(tmp_path: Path) -> None:
    moved = 500

    def move() -> None:
        for position in range(moved):
            Hints(tmp_path).advance("mirror", position)

    with ThreadPoolExecutor() as pool:
        moving = pool.submit(move)
        while not moving.done():
            Hints(tmp_path).forget_snapshots()
        moving.result()
    assert Hints(tmp_path).cursor("mirror") == moved - 1
