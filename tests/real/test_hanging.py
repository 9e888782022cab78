"""A headless OpenCode that hangs is continued, or else replaced; its work ends, and no step is done twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.background import intents, spawns
from tests.real.durable import PLUGIN, DurableStream, is_alive, wait_until
from tests.real.model_server import ModelServer
from tests.real.opencode import RealOpenCode
from tests.real.scripts import bash

pytestmark = [
    pytest.mark.real_opencode,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux says whether a process makes progress"),
]

IMPATIENT = """#!{python}
import sys
from sidecar.background.hosts import hung
from sidecar.link import server
hung.QUIET_ROUNDS, hung.KILL_ROUNDS, server.PING_SECONDS = 3, 2, 2.0
from sidecar.cli import main
sys.exit(main())
"""

# At the first tool call that says so, once another one has begun, the whole process stops at a lock.
HANGING = """
import fs from "node:fs";
export default async () => ({{
  "tool.execute.before": async ({{ tool }}, output) => {{
    if (tool !== "bash" || !output.args.command.includes("HANG") || fs.existsSync("{root}/hung")) return;
    while (!fs.existsSync("{root}/begun")) await new Promise((done) => setTimeout(done, 20));
    fs.writeFileSync("{root}/hung", "");
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0);
  }},
}});
"""


@pytest.fixture(scope="module")
def client(
    opencode_binary: Path, model: ModelServer, durable: DurableStream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealOpenCode]:
    root = tmp_path_factory.mktemp("hanging")
    impatient = root / "durable-stream"
    impatient.write_text(IMPATIENT.format(python=sys.executable))
    impatient.chmod(0o755)
    start = 'setsid "$0" --home "$1" serve --idle-exit >/dev/null 2>&1 &'
    subprocess.run(["sh", "-c", start, impatient, durable.home], check=True)
    wait_until(durable.running, "a sidecar")
    durable.cli("agents")
    config = {"permission": {"external_directory": "allow"}}
    plugins = {PLUGIN: durable.plugin(command=impatient), "hanging.js": HANGING.format(root=root)}
    with RealOpenCode(opencode_binary, model.port, plugins=plugins, plugin_scope="global", config=config) as client:
        client.effects = root  # type: ignore[attr-defined]
        yield client
        durable.end_with(client)


def headless(client: RealOpenCode, durable: DurableStream) -> int:
    """The pid of the headless OpenCode."""
    (pid,) = {link["pid"] for link in durable.status()["links"]} - {client.pid}
    return int(pid)


def test_one_that_hangs_is_replaced_and_no_step_is_done_twice(client: RealOpenCode, durable: DurableStream) -> None:
    root: Path = client.effects  # type: ignore[attr-defined]
    running = bash(f"echo one >> {root}/effects; echo $$ > {root}/begun; sleep 100; echo late >> {root}/effects")
    parent = client.create_session("parent")
    work = spawns(f"{running} {bash('echo HANG')}", isolation="shared")
    client.prompt(parent, f"{work} THEN: SAY:started")
    wait_until((root / "hung").exists, "an OpenCode that hangs")
    first = headless(client, durable)
    wait_until(lambda: intents(durable, parent)[0]["ended"], "the end of its work", 90)
    (intent,) = intents(durable, parent)
    assert intent["state"] == "completed", intent["reason"]
    assert not is_alive(first) and not is_alive(int((root / "begun").read_text()))
    assert (root / "effects").read_text() == "one\n"
    assert durable.status()["hung"] == 1
    types = [record["event"]["type"] for record in durable.log("agent/intents")]
    assert types.count("intent.hung") == types.count("intent.interrupted") == 1

    # A stopped one only has to be continued.
    counted = bash(f"echo three >> {root}/effects; touch {root}/third; sleep 1; echo four >> {root}/effects")
    client.prompt(parent, f"{spawns(counted, 'again', isolation='shared')}THEN: SAY:started")
    wait_until((root / "third").exists, "a tool that runs")
    os.kill(headless(client, durable), signal.SIGSTOP)
    wait_until(lambda: intents(durable, parent)[1]["ended"], "the end of its work", 90)
    assert intents(durable, parent)[1]["state"] == "completed"
    assert (root / "effects").read_text() == "one\nthree\nfour\n"
    types = [record["event"]["type"] for record in durable.log("agent/intents")]
    assert types.count("intent.interrupted") == 1
