"""Switched-off and excluded projects leave no data, with the real OpenCode and a real sidecar.

``DURABLE_STREAM=off`` is in ``test_several.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real.durable import PLUGIN, DurableStream, wait_until
from tests.real.model_server import ModelServer
from tests.real.opencode import RealOpenCode

pytestmark = pytest.mark.real_opencode

SECRET = "a word that must never be written"


def leaks(home: Path) -> list[Path]:
    """The files of a home that contain the secret word."""
    return [path for path in home.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]


def exclude(home: Path, project: Path) -> None:
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "config.toml").write_text(f'[capture]\nexclude = ["{project}"]\n')


def test_an_excluded_project_leaves_nothing_and_is_recorded_again_when_it_is_not(
    durable: DurableStream, opencode_binary: Path, model: ModelServer, tmp_path: Path
) -> None:
    # Excluded under another name than the one OpenCode reports.
    root, way = tmp_path / "opencode", tmp_path / "way"
    way.symlink_to(root / "project")
    exclude(durable.home, way)
    with RealOpenCode(opencode_binary, model.port, plugins={PLUGIN: durable.plugin()}, root=root) as client:
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

        exclude(durable.home, tmp_path / "another")
        durable.stop()
        client.prompt(session, "SAY:something else")
        wait_until(lambda: "something else" in str(durable.whole_log()), "the next turn in the log")
        assert leaks(durable.home) == []
        assert "excluded" not in durable.doctor(client.project)
        durable.end_with(client)
