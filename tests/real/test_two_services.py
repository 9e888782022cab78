"""Two servers of the real OpenCode 2 on one database: the sidecar records everything of both, once."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sidecar.opencode2.reader import POLLED

from tests.real.background import two_with_plugin
from tests.real.durable import DurableStream
from tests.real.model_server import ModelServer
from tests.real.opencode2 import RealOpenCode2
from tests.real.recorded2 import assert_event_for_event, assert_recorded, outcomes

pytestmark = pytest.mark.real_opencode

IMPATIENT = """#!{python}
from functools import partial
from sidecar.cli import main
from sidecar.opencode2 import services
services.Reader = partial(services.Reader, poll_seconds=0.2)
main()
"""
"""A ``durable-stream`` that does not wait for half a minute before it looks for what the other server did."""

TOOLS = " THEN: ".join(f"CALL:shell {json.dumps({'command': f'echo {number}; sleep 0.1'})}" for number in range(4))


class Unregistered(RealOpenCode2):
    registers = False


@pytest.fixture
def durable(tmp_path: Path) -> Iterator[DurableStream]:
    with DurableStream(tmp_path / "home") as stream:
        yield stream


@pytest.fixture
def client(model: ModelServer, durable: DurableStream, tmp_path: Path) -> Iterator[RealOpenCode2]:
    command = tmp_path / "durable-stream"
    command.write_text(IMPATIENT.format(python=sys.executable))
    command.chmod(0o755)
    with two_with_plugin(model, durable, command) as opencode:
        yield opencode


@pytest.fixture(params=["registered", "unregistered"])
def other(client: RealOpenCode2, model: ModelServer, request: pytest.FixtureRequest) -> Iterator[RealOpenCode2]:
    """A server of the same user that began later: a service with another state directory, or one that no file names."""
    kind = RealOpenCode2 if request.param == "registered" else Unregistered
    environment = {"XDG_STATE_HOME": str(client.root / "state2")} if request.param == "registered" else {}
    options = {"config": {"snapshot": False}, "environment": environment}
    with kind(client.binary, model.port, root=client.root, **options) as opencode:  # type: ignore[arg-type]
        yield opencode


def test_everything_of_both_is_recorded_once(
    client: RealOpenCode2, other: RealOpenCode2, durable: DurableStream, model: ModelServer
) -> None:
    first, second = client.new_session(), other.new_session()
    for _ in range(POLLED):
        client.new_session()  # newer ones, so that the two are read in turn with others
    for _ in range(2):
        client.prompt(first, TOOLS)
        other.prompt(second, TOOLS)
        client.wait(first)
        other.wait(second)
    for server in (other, client, other):  # one session, in turns
        server.prompt(first, "SAY:by turns")
        server.wait(first)
    other.prompt(second, f"{TOOLS} THEN: HOLD:{second} SAY:long after")
    model.wait_held(second)
    os.kill(killed := durable.wait_linked(), signal.SIGKILL)
    durable.wait_running({killed})
    client.prompt(first, "SAY:again")  # recorded after the new sidecar has looked for turns that nobody runs
    client.wait(first)
    assert_recorded(durable, client, first)
    model.release(second)
    other.wait(second)
    for session, turns in ((first, 6), (second, 3)):
        records = assert_event_for_event(durable, client, session)
        assert outcomes(records, session) == ["completed"] * turns
    durable.cli("verify")
    assert durable.lines("query", "--type", "capture.gap") == []
