"""What OpenCode does without being recorded: an excluded project leaves no data, and turns without the plugin are read
from OpenCode's own history when the session goes on.

``DURABLE_STREAM=off`` is in ``test_several.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.durable import PLUGIN, DurableStream, wait_until
from tests.real.model_server import ModelServer
from tests.real.opencode import RealOpenCode
from tests.real.recorded import expected, family, missing
from tests.searching import files_with

pytestmark = pytest.mark.real_opencode

SECRET = "a word that must never be written"


def leaks(home: Path) -> list[str]:
    """The files of a home that contain the secret word."""
    return files_with(home, SECRET)


def exclude(home: Path, project: Path) -> None:
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "config.toml").write_text(f'[capture]\nexclude = ["{project}"]\n')


@pytest.fixture(scope="module")
def client(
    durable: DurableStream, opencode_binary: Path, model: ModelServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealOpenCode]:
    """In a project that is excluded under another name than the one OpenCode reports."""
    place = tmp_path_factory.mktemp("place")
    root, way = place / "opencode", place / "way"
    way.symlink_to(root / "project")
    exclude(durable.home, way)
    with RealOpenCode(opencode_binary, model.port, plugins={PLUGIN: durable.plugin()}, root=root) as client:
        yield client
        durable.end_with(client)


def test_an_excluded_project_leaves_nothing_and_is_recorded_again_when_it_is_not(
    durable: DurableStream, client: RealOpenCode
) -> None:
    session = client.create_session()
    client.prompt(session, f"SAY:{SECRET}")
    durable.wait_linked()
    # Everything handed over is acknowledged, so nothing of it can come later.
    wait_until(lambda: durable.status()["counts"]["excluded"] > 0, "excluded hooks")
    wait_until(lambda: not list((durable.home / "spool").iterdir()), "an empty spool")
    assert durable.status()["log"]["head"] == -1
    told = durable.doctor(client.project)
    assert "is not recorded" in told["excluded"]["text"] and told["excluded"]["level"] == "note"
    assert leaks(durable.home) == []

    exclude(durable.home, client.project.parent / "another")
    durable.stop()
    client.prompt(session, "SAY:something else")
    wait_until(lambda: "something else" in str(durable.whole_log()), "the next turn in the log")
    assert leaks(durable.home) == []
    assert "excluded" not in durable.doctor(client.project)


def test_turns_without_the_plugin_are_read_when_the_session_goes_on(
    durable: DurableStream, client: RealOpenCode
) -> None:
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
