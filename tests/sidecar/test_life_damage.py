"""Damage to a live shim's spool loses only the damaged hooks, and the log says which. Real processes."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from sidecar.home import Home
from streams.identity import system_identity
from streams.stores.jsonl.reader import JsonlReader
from tests.sidecar.life import COMMAND, RUNTIMES, recorded, shims

# Of 220 hooks, hook n under seq n.
DAMAGE: dict[str, tuple[Callable[[bytes], bytes], range]] = {
    "one byte of an item": (lambda text: re.sub(rb'({"seq":100,.*"t":).', rb"\1x", text), range(100, 101)),
    "one digit of a seq": (lambda text: text.replace(b'{"seq":100,', b'{"seq":900,'), range(100, 101)),
    "a newline": (lambda text: re.sub(rb'\n({"seq":101,)', rb"x\1", text), range(100, 102)),
    "the end": (lambda text: text[: text.index(b'{"seq":200,') + 30], range(200, 221)),
}


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("what", DAMAGE)
async def test_damage_costs_its_own_hooks_and_the_log_says_which(home: Home, runtime: str, what: str) -> None:
    home.ensure_token(system_identity().nonce)
    command = home.path / "command"  # it cannot start a sidecar yet
    damage, lost = DAMAGE[what]
    with shims(1, home.path, runtime=runtime, command=[str(command)]) as (shim,):
        shim.ask("events", **{"from": 1}, count=220, text="x")
        (spool,) = home.spool_path.iterdir()
        before = spool.read_bytes()
        assert damage(before) != before
        spool.write_bytes(damage(before))
        command.write_text(f'#!/bin/sh\nexec {" ".join(COMMAND)} "$@"\n')
        command.chmod(0o700)
        counters = shim.until("acked", 220)
        assert counters["lost_spool_damaged"] == len(lost)
        shim.ask("events", **{"from": 221}, count=5, text="x")
        shim.until("acked", 225)
    assert await recorded(home) == {n: 1 for n in range(1, 226) if n not in lost}
    gaps = [r.event.payload async for r in JsonlReader(home.store_path).read_all() if r.event.type == "capture.gap"]
    assert [(gap["reason"], gap["lost"], gap["first_seq"]) for gap in gaps] == [("spool_damaged", len(lost), lost[0])]
