"""Background work with the real client: spawned by the model, run by a headless OpenCode, told to the parent once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.real.durable import PLUGIN, DurableStream, wait_until
from tests.real.model_server import ModelServer
from tests.real.opencode import RealOpenCode

pytestmark = pytest.mark.real_opencode


@pytest.fixture
def durable(tmp_path: Path) -> Iterator[DurableStream]:
    with DurableStream(tmp_path / "home") as stream:
        yield stream


@pytest.fixture
def client(opencode_binary: Path, model: ModelServer, durable: DurableStream) -> Iterator[RealOpenCode]:
    durable.cli("agents")  # the sidecar says which tools there are
    plugins = {PLUGIN: durable.plugin()}
    with RealOpenCode(opencode_binary, model.port, plugins=plugins, plugin_scope="global") as opencode:
        yield opencode


def spawn(prompt: str, title: str = "count things") -> str:
    return f"CALL:agent_spawn {json.dumps({'prompt': prompt, 'title': title})}THEN: SAY:started"


def intents(durable: DurableStream) -> list[dict[str, Any]]:
    return durable.lines("intents")


def test_the_whole_line(client: RealOpenCode, durable: DurableStream) -> None:
    parent = client.create_session("parent")
    client.prompt(parent, spawn("SAY:the answer is 42"))
    wait_until(lambda: [i["state"] for i in intents(durable)] == ["completed"], "the end of the intent")
    (intent,) = intents(durable)
    assert intent["result"] == "the answer is 42"
    assert intent["parent"] == parent
    wait_until(lambda: "42" in json.dumps(client.messages(parent)[-1]), "the parent's answer")
