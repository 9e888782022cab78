"""What OpenCode did while it had no plugin is read from its own history when the session goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real.durable import PLUGIN, DurableStream, wait_until
from tests.real.model_server import ModelServer
from tests.real.opencode import RealOpenCode
from tests.real.recorded import expected, family, missing

pytestmark = pytest.mark.real_opencode


def test_turns_without_the_plugin_are_read_when_the_session_goes_on(
    opencode_binary: Path, model: ModelServer, tmp_path: Path
) -> None:
    with DurableStream(tmp_path / "home") as durable:
        plugins = {PLUGIN: durable.plugin()}
        with RealOpenCode(opencode_binary, model.port, plugins=plugins) as client:
            session = client.create_session("goes on")
            client.prompt(session, "SAY:one")
            wait_until(lambda: not missing(durable.log(session), expected(family(client, session))), "the first turn")
            plugin = client.project / ".opencode" / "plugin" / PLUGIN
            text = plugin.read_text()
            plugin.unlink()
            client.restart()
            client.prompt(session, 'CALL:bash {"command": "echo two", "description": "d"}THEN: SAY:two')
            client.prompt(session, "HTTPERR:400 SAY:three")
            plugin.write_text(text)
            client.restart()
            client.prompt(session, "SAY:four")
            plan = expected(family(client, session, resumed={session: 1}, live=False))
            wait_until(lambda: not missing(durable.log(session), plan), "what happened without the plugin")
            records = durable.log(session)
            history = [r["event"]["type"] for r in records if r["event"]["metadata"].get("history")]
            assert history.count("turn.started") == history.count("turn.ended") == 2
            client.prompt(session, "SAY:five")
            wait_until(lambda: "five" in str(durable.log(session)[-3:]), "the next turn")
            keys = [r["event"]["idempotency_key"] for r in durable.log(session)]
            assert len(keys) == len(set(keys))
