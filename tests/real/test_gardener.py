"""The gardener with the real client: a session whose tools fail gets one agent, and its answer without being woken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.real.durable import PLUGIN, DurableStream, wait_until
from tests.real.model_server import ModelServer
from tests.real.opencode import RealOpenCode

pytestmark = pytest.mark.real_opencode


def test_a_session_that_fails_gets_one_agent(opencode_binary: Path, model: ModelServer, tmp_path: Path) -> None:
    with DurableStream(tmp_path / "home") as durable:
        durable.home.mkdir(exist_ok=True)
        (durable.home / "config.toml").write_text("[gardener]\nenabled = true\nmin_steps = 2\nthreshold = 0.4\n")
        plugins = {PLUGIN: durable.plugin()}
        with RealOpenCode(opencode_binary, model.port, plugins=plugins, plugin_scope="global") as client:
            session = client.create_session("a session that fails")
            missing = f"CALL:read {json.dumps({'filePath': str(client.project / 'missing')})}"
            for _ in range(2):
                client.prompt(session, f"{missing}{missing}THEN: SAY:it failed")
            wait_until(lambda: [i["state"] for i in durable.lines("intents")] == ["completed"], "the gardener's agent")
            (intent,) = durable.lines("intents")
            assert (intent["parent"], intent["agent"], intent["root"]) == (session, "plan", "gardener")
            wait_until(lambda: intent["id"] in json.dumps(client.messages(session)), "its answer in the session")
            types = [r["event"]["type"] for r in durable.lines("query")]
            assert types.count("agent.correction") == 1
            assert "background-agent" in json.dumps(client.messages(session)[-1]), "the model was not woken"
            client.prompt(session, "SAY:on it", agent="plan")
            wait_until(
                lambda: "agent.handoff" in [r["event"]["type"] for r in durable.log(session)], "the other agent's turn"
            )
