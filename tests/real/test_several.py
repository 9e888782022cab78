"""Several copies of the plugin, sessions from before, and the off switch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.real.durable import PLUGIN, DurableStream, wait_until
from tests.real.model_server import ModelServer
from tests.real.opencode import RealOpenCode
from tests.real.recorded import expected, family, other_twin
from tests.real.scripts import bash, call

pytestmark = pytest.mark.real_opencode


@pytest.fixture
def durable(tmp_path: Path) -> Iterator[DurableStream]:
    """A separate home for each test, because another test's sidecar would answer here."""
    with DurableStream(tmp_path / "home") as stream:
        yield stream


def test_two_copies_of_the_plugin_record_once(
    durable: DurableStream, opencode_binary: Path, model: ModelServer
) -> None:
    plugins = {PLUGIN: durable.plugin()}
    with RealOpenCode(opencode_binary, model.port, plugins=plugins, serve=False) as client:
        place = client.config_directory / "plugin" / PLUGIN
        place.parent.mkdir()
        place.write_text(durable.plugin())
        client.start()
        session = client.create_session()
        client.prompt(session, call("task", description="work", prompt=bash("echo kid"), subagent_type="general"))
        with client.events() as events:
            client.prompt_async(session, f"CALLID:twin {bash('echo one')} {bash('echo two')}")
            events.wait_type("session.idle", session)
        told = family(client, session)
        [twin] = [part for part in client.parts(session, "tool") if part["callID"] == "twin"]
        told.unparted.append(other_twin(twin, told.sessions[0].users()[1]["info"]["id"]))
        durable.assert_recorded(expected(told))
        wait_until(lambda: [link["delivers"] for link in durable.status()["links"]] == [True, True], "both links")
        first, other = durable.status()["links"]
        assert first["instance"] != other["instance"]
        assert first["boot_id"] == other["boot_id"]
        durable.assert_whole()
        durable.end_with(client)
        # By now, everything from the slower copy has arrived.
        durable.assert_recorded(expected(told))
        wait_until(lambda: client.leftovers() == [], "the end of all processes")


def test_off_then_on_in_new_processes_and_sessions_of_the_command_line(
    durable: DurableStream, opencode_binary: Path, model: ModelServer, tmp_path: Path
) -> None:
    how: dict[str, Any] = {"plugins": {PLUGIN: durable.plugin()}, "root": tmp_path / "opencode"}
    off = {"DURABLE_STREAM": "off"}
    with RealOpenCode(opencode_binary, model.port, environment=off, serve=False, **how) as client:
        without = client.run("SAY:same words", "--title", "before")
        assert client.leftovers() == []
    assert not durable.home.exists()
    session = model.requests[-1].session

    with RealOpenCode(opencode_binary, model.port, serve=False, **how) as client:
        recorded = client.run("SAY:same words", "--title", "begun")
        begun = model.requests[-1].session
        wait_until(lambda: durable.processes(client) == [durable.running()], "one sidecar alone")
        # On a busy machine, the command ends before its link opens, and its hooks wait in the spool. The hooks of the
        # next process may be recorded before that spool.
        wait_until(lambda: not list((durable.home / "spool").glob("*.jsonl")), "the end of the spool")
        # The plugin prints nothing: OpenCode says the same with it and without.
        assert "same words" in recorded.stdout
        assert (recorded.stdout, recorded.stderr) == (without.stdout, without.stderr)
        assert "durable" not in (recorded.stdout + recorded.stderr).lower()
        assert "shim" not in (recorded.stdout + recorded.stderr).lower()

        assert "again" in client.run("SAY:again", "--continue").stdout
        client.start()
        durable.assert_recorded(expected(family(client, begun, resumed={begun: 1})))
        client.prompt(session, bash("echo and from a server"))
        client.prompt(session, "SAY:twice")
        # Recorded from where the plugin was on, and as a root: OpenCode was asked, or said so itself.
        told = family(client, session, created=False, resumed={session: 1})
        del told.sessions[0].messages[:2]
        records = durable.assert_recorded(expected(told))
        assert [r["event"]["type"] for r in records[:2]] == ["lifecycle.session.resumed", "human.input"]
        durable.assert_whole()
        durable.end_with(client)
        wait_until(lambda: client.leftovers() == [], "the end of all processes")
        for printed in (client.stdout_path, client.stderr_path):
            assert "shim" not in printed.read_text().lower()
