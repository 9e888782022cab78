"""What `doctor` says of OpenCodes that are linked, and of services of OpenCode 2 that have not loaded the plugin."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from sidecar.care.checks.check import Scene, scene_of
from sidecar.care.checks.opencode import check_opencode
from sidecar.care.checks.table import BEFORE_THE_LOG
from sidecar.care.checks.unlinked import check_unlinked
from sidecar.home import Home, SidecarInfo
from sidecar.install.plugin import Target, install, shim_path


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """A user with the plugin and an empty home."""
    environ = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config"), "PATH": str(tmp_path)}
    home = Home(tmp_path / "records")
    home.create()
    command = ["durable-stream"]
    install(
        Target.everywhere(environ), shim=shim_path(), command=command, home=home.path, cwd=tmp_path, environ=environ
    )
    return scene_of(home, ("durable-stream",), tmp_path, environ)


def test_an_opencode_1_that_is_linked_and_not_on_the_path(scene: Scene) -> None:
    """An IDE brings its own. A service of OpenCode 2 and `play` have lines of their own, or none."""
    versions = ["1.18.33", "1.18.34", "1.17.9", "recording", None]
    links: list[dict[str, object]] = [{"opencode_version": version, "service": ""} for version in versions]
    links.append({"opencode_version": "2.2.0", "service": "/s/service.json"})
    found = check_opencode(scene._replace(answer={"links": links}))
    told = [(check.level, check.text) for check in found if check.name == "opencode"]
    assert told[1:] == [
        ("ok", "1.18.33 (connected)"),
        ("note", "1.18.34 (connected) is newer than 1.18.33, the last proven version"),
        ("problem", "1.17.9 (connected) is too old"),
    ]
    assert not any("recording" in check.text for check in found)


def test_a_service_that_has_not_loaded_the_plugin(scene: Scene, tmp_path: Path) -> None:
    """It outlives the terminal, so the one that ran before `install` goes on without the plugin."""
    ((target, _),) = scene.plugins
    file = tmp_path / ".local" / "state" / "opencode" / "service.json"
    file.parent.mkdir(parents=True)
    assert check_unlinked in BEFORE_THE_LOG and check_unlinked(scene) == []
    with socket.create_server(("127.0.0.1", 0)) as service:
        url = f"http://127.0.0.1:{service.getsockname()[1]}"
        file.write_text(json.dumps({"id": "i", "url": url, "pid": os.getpid(), "password": "p"}))
        file.chmod(0o600)
        os.utime(target.plugin, (file.stat().st_mtime - 1,) * 2)
        (after,) = check_unlinked(scene)
        os.utime(target.plugin, (file.stat().st_mtime + 1,) * 2)
        (before,) = check_unlinked(scene)
        assert {after.level, before.level} == {"note"}, "it loads the plugin when it is next used"
        assert "opencode service restart" in before.hint and f"pid {os.getpid()}" in before.text
        assert ("started before" in before.text, "started before" in after.text) == (True, False)
        assert check_unlinked(scene._replace(answer={"links": [{"pid": os.getpid()}]})) == []
        assert check_unlinked(scene._replace(plugins=())) == [], "what is not installed cannot be loaded"
        with scene.home.lock():
            scene.home.write_info(SidecarInfo(os.getpid(), 9, "b" * 32, "0.1.0", 1, 0))
            assert check_unlinked(scene) == [], "a sidecar that does not answer may have its link"
        scene.home.remove_info()
        file.chmod(0o644)
        assert check_unlinked(scene) == []
        file.chmod(0o600)
        assert check_unlinked(scene) == [before]
    assert check_unlinked(scene) == [], "a killed service's pid may be another process's"
