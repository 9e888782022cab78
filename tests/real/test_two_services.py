"""Two servers of the real OpenCode 2 on one database: the sidecar records everything of both, once."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator

import pytest

from tests.real.background import two_with_plugin
from tests.real.durable import DurableStream
from tests.real.model_server import ModelServer
from tests.real.opencode2 import RealOpenCode2
from tests.real.recorded2 import assert_recorded, outcomes

pytestmark = pytest.mark.real_opencode

TOOLS = " THEN: ".join(f"CALL:shell {json.dumps({'command': f'echo {number}; sleep 0.1'})}" for number in range(4))


class Unregistered(RealOpenCode2):
    registers = False


@pytest.fixture(scope="module")
def client(model: ModelServer, durable: DurableStream) -> Iterator[RealOpenCode2]:
    with two_with_plugin(model, durable) as opencode:
        yield opencode


@pytest.fixture
def other(client: RealOpenCode2, model: ModelServer) -> Iterator[RealOpenCode2]:
    """A later server of the same user. No file names it, so the sidecar learns of it from its plugin alone."""
    with Unregistered(client.binary, model.port, root=client.root) as opencode:
        yield opencode


def test_everything_of_both_is_recorded_once(
    client: RealOpenCode2, other: RealOpenCode2, durable: DurableStream, model: ModelServer
) -> None:
    first, second = client.new_session(), other.new_session()
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
    client.prompt(first, "SAY:again")  # while the other server runs a turn that the service does not know as active
    client.wait(first)
    assert_recorded(durable, client, first)
    model.release(second)
    other.wait(second)
    for session, turns in ((first, 6), (second, 3)):
        records = assert_recorded(durable, client, session)
        assert outcomes(records, session) == ["completed"] * turns
    durable.cli("verify")
    assert durable.lines("query", "--type", "capture.gap") == []
