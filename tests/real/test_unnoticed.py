"""OpenCode never notices a fault of sidecar, spool or disk: prompts continue and nothing is lost.

All faults hit one OpenCode, one after the other. ``make bench`` measures what a prompt costs under each;
here only a hang fails.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.durable import wait_until
from tests.real.faults import FAULTS, Scene, hung_without_spool
from tests.real.model_server import ModelServer
from tests.real.opencode import RealOpenCode
from tests.real.recorded import Json, expected, family
from tests.real.scripts import bash

pytestmark = pytest.mark.real_opencode

PROMPT_LIMIT_S = 30.0

# A tool that calls the plugin's own hook as fast as it can, and tells what that did to this process.
FLOOD = """(plugin) => async (given) => {
  const hooks = await plugin(given);
  const counters = hooks[Symbol.for("durable-stream.counters")];
  const execute = async ({ count, bytes }) => {
    Bun.gc(true);
    const began = { ...counters };
    const before = process.memoryUsage.rss();
    let most = before;
    for (let n = 1; n <= count; n += 1) {
      hooks.event({ event: { id: `evt_flood${n}`, type: "test.flood", properties: { n, pad: "x".repeat(bytes) } } });
      if (n % 500) continue;
      await new Promise((resolve) => setTimeout(resolve, 1));
      most = Math.max(most, process.memoryUsage.rss());
    }
    const since = Object.entries(counters).map(([name, value]) => [name, value - began[name]]);
    return JSON.stringify({ grown: most - before, ...Object.fromEntries(since) });
  };
  const until_late = async () => {
    const end = counters.late_acks + counters.handshake_timeouts + 2;
    while (counters.late_acks + counters.handshake_timeouts < end) await new Promise((then) => setTimeout(then, 20));
    return "late";
  };
  const number = { type: "number", description: "d" };
  hooks.tool = {
    flood: { description: "d", args: { count: number, bytes: number }, execute },
    until_late: { description: "d", args: {}, execute: until_late },
  };
  return hooks;
}"""
FLOOD_ITEMS, FLOOD_BYTES = 12_000, 4096
MEMORY_LIMIT = 32 * 2**20
"""Bytes of items that the plugin holds at most, as it is installed."""


@pytest.fixture(scope="module")
def opencode(opencode_binary: Path, model: ModelServer) -> Iterator[RealOpenCode]:
    environment = {"BUN_JSC_useGC": "1"}  # a test measures its memory
    with RealOpenCode(opencode_binary, model.port, environment=environment) as client:
        yield client
        client.terminate()
        # The plugin says nothing, whatever happens to it, so it never spoils the screen of a terminal either: the last
        # line is OpenCode's own.
        *_, last = client.stdout_path.read_text().splitlines()
        assert last == f"opencode server listening on http://127.0.0.1:{client.port}"
        assert "shim" not in (client.stdout_path.read_text() + client.stderr_path.read_text()).lower()


@pytest.fixture(scope="module")
def scene(opencode: RealOpenCode) -> Iterator[Scene]:
    with Scene(opencode, "faults", FLOOD) as made:
        yield made


@pytest.mark.parametrize("fault", FAULTS)
def test_prompts_go_on(scene: Scene, fault: str) -> None:
    with FAULTS[fault](scene):
        session = scene.api.create_session()
        for number in range(2):
            scene.api.prompt(session, bash(f"echo {number}"), timeout=PROMPT_LIMIT_S)
    scene.mend()
    scene.durable.assert_recorded(expected(family(scene.api, session)))


def test_nothing_was_lost(scene: Scene) -> None:
    scene.linked()
    wait_until(lambda: not scene.spooled(), "the end of the spool")
    scene.durable.assert_whole()


def test_memory_is_bounded_and_one_gap_tells_what_is_missing(scene: Scene) -> None:
    arguments = json.dumps({"count": FLOOD_ITEMS, "bytes": FLOOD_BYTES})
    with hung_without_spool(scene):
        session = scene.api.create_session()
        scene.api.prompt(session, f"CALL:until_late THEN: CALL:flood {arguments}")
    told = json.loads(scene.api.parts(session, "tool")[1]["state"]["output"])
    assert told["spooled"] == 0
    assert told["lost_memory_full"] > FLOOD_ITEMS // 4
    assert told["grown"] < 4 * MEMORY_LIMIT, f"{FLOOD_ITEMS * FLOOD_BYTES} bytes went through"

    def gaps() -> list[Json]:
        return [record["event"]["payload"] for record in scene.durable.lines("query", "--type", "capture.gap")]

    scene.mend()
    wait_until(gaps, "a gap")
    session = scene.api.create_session()
    scene.api.prompt(session, "SAY:and it continues")
    scene.durable.assert_recorded(expected(family(scene.api, session)))
    [gap] = gaps()
    assert gap["reason"] == "memory_full"
    kept = scene.durable.lines("query", "--type", "opencode.test.flood")
    numbers = [record["event"]["payload"]["properties"]["n"] for record in kept]
    assert numbers == list(range(1, len(kept) + 1))
    # Besides the flood only the end of its prompt was lost.
    assert 0 <= gap["lost"] + len(kept) - FLOOD_ITEMS < 100
