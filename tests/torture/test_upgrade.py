"""OpenCode is upgraded, and downgraded again, under one home: the log continues as if it were one OpenCode.

Each version is a real one, installed next to the pinned one on first use (about 190 MB each).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.real.durable import PLUGIN, DurableStream, wait_until
from tests.real.model_server import ModelServer
from tests.real.opencode import RealOpenCode
from tests.real.recorded import expected, family
from tools.install_opencode import VERSION, install

pytestmark = [pytest.mark.real_opencode, pytest.mark.torture]

OLDER, NEWER = "1.18.20", "1.18.34"


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server
    assert server.errors == []


@pytest.mark.parametrize("versions", [[OLDER, VERSION, NEWER], [NEWER, VERSION]], ids=["upgrade", "downgrade"])
def test_one_home_and_another_opencode(model: ModelServer, tmp_path: Path, versions: list[str]) -> None:
    command = json.dumps({"command": "echo hi", "description": "d"})
    task = json.dumps({"description": "work", "prompt": f"CALL:bash {command}", "subagent_type": "general"})
    with DurableStream(tmp_path / "home") as durable:
        how: dict[str, Any] = {"config": {"snapshot": False}, "plugins": {PLUGIN: durable.plugin()}}
        sessions: list[str] = []
        for version in versions:
            with RealOpenCode(install(version), model.port, root=tmp_path / "opencode", **how) as client:
                # Each continues with what those before it began, and begins something of its own.
                sessions.append(client.create_session())
                for session in sessions:
                    client.prompt(session, f"CALL:bash {command}")
                    client.prompt(session, f"CALL:task {task}")
                for age, session in enumerate(reversed(sessions)):
                    resumed = {told.id: age for told in family(client, session).sessions if told.id == session}
                    durable.assert_recorded(expected(family(client, session, resumed=resumed)))
                wait_until(lambda v=version: v in seen(durable), f"OpenCode {version} among the links")
                durable.assert_whole()
                durable.end_with(client)


def seen(durable: DurableStream) -> set[str | None]:
    return {link["opencode_version"] for link in durable.status()["links"]}
