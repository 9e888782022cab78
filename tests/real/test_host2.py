"""The contract of ``Host`` on the real OpenCode 2."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bridge.opencode.capture.state import CaptureState
from sidecar.orchestrator.v2 import V2Host
from tests.real.host_contract import HostContract
from tests.real.model_server import ModelServer
from tests.real.opencode2 import RealOpenCode2
from tools.install_opencode import VERSION_2, binary_path

pytestmark = pytest.mark.real_opencode


@pytest.fixture(scope="module")
def client(model: ModelServer) -> Iterator[RealOpenCode2]:
    with RealOpenCode2(binary_path(VERSION_2), model.port, config={"snapshot": False}) as opencode:
        yield opencode


class TestV2Host(HostContract):
    @pytest.fixture(autouse=True)
    def _host(self, client: RealOpenCode2, model: ModelServer) -> None:
        self.host = V2Host(lambda: [client.registration], CaptureState())
        self.directory, self.model = str(client.project), model
