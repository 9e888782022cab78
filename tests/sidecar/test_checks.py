"""What ``status`` and ``doctor`` find, on homes in every state."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from sidecar import checks
from sidecar.checks import Check, diagnose
from sidecar.cli.state import gather_status
from sidecar.home import Home, SidecarInfo
from sidecar.installer import Target, install
from streams.identity import seeded_identity
from tests.sidecar.cli.helpers import append
from tests.streams.builders import event, events

PROGRAM = "#!/bin/sh\necho {}\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home with a log, beside an OpenCode of a known version and an installed plugin."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, says in (("opencode", "1.18.33"), ("durable-stream", "durable-stream 0.1.0")):
        (programs / name).write_text(PROGRAM.format(says))
        (programs / name).chmod(0o755)
    (tmp_path / "shim").mkdir()
    (tmp_path / "shim" / "plugin.js").write_text("")
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    made = Home(tmp_path / "home")
    made.create()
    made.ensure_token(seeded_identity(1).nonce)
    asyncio.run(append(made.store_path, [events(3), events(2, prefix="x", stream="ses_b")]))
    set_up(made, Target.everywhere(), programs)
    return made


def set_up(home: Home, target: Target, programs: Path) -> None:
    shim = programs.parent / "shim" / "plugin.js"
    install(target, shim=shim, command=[str(programs / "durable-stream")], home=home.path)


def programs(home: Home) -> Path:
    return home.path.parent / "bin"


def look(home: Home) -> dict[str, Check]:
    async def collect() -> dict[str, Check]:
        command = [str(programs(home) / "durable-stream")]
        return {check.name: check async for check in diagnose(home, command)}

    return asyncio.run(collect())


def status(home: Home) -> dict[str, object]:
    return asyncio.run(gather_status(home))


def test_all_is_well(home: Home) -> None:
    found = look(home)
    assert {check.level for check in found.values()} == {"ok"}
    assert set(found) == {"opencode", "plugin", "home", "token", "config", "sidecar", "log", "spool", "disk"}
    assert "5 records" in found["log"].text


def test_another_opencode_and_none(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    (programs(home) / "opencode").write_text(PROGRAM.format("2.0.1"))
    assert (look(home)["opencode"].level, "2.0.1" in look(home)["opencode"].text) == ("note", True)
    (programs(home) / "opencode").unlink()
    assert look(home)["opencode"].level == "note"


def test_plugin_missing_twice_broken_or_of_another_home(home: Home) -> None:
    everywhere, project = Target.everywhere(), Target.project(Path.cwd())
    set_up(home, project, programs(home))
    assert "both" in look(home)["plugin"].text and look(home)["plugin"].level == "note"
    project.plugin.unlink()

    set_up(Home(home.path / "other"), everywhere, programs(home))
    assert "another home" in look(home)["plugin"].text

    set_up(home, everywhere, programs(home))
    (programs(home) / "durable-stream").write_text("#!/bin/sh\nexit 3\n")
    assert "cannot be run" in look(home)["plugin"].text
    (programs(home) / "durable-stream").unlink()
    assert "is not there" in look(home)["plugin"].text and look(home)["plugin"].level == "problem"

    everywhere.plugin.unlink()
    assert look(home)["plugin"].hint.startswith("run `durable-stream install`")


def test_modes(home: Home) -> None:
    home.token_path.chmod(0o644)
    assert look(home)["token"].level == "problem"
    home.path.chmod(0o755)
    assert f"chmod 700 {home.path}" in look(home)["home"].hint


def test_config(home: Home) -> None:
    home.config_path.write_text("[nonsense]\nx = 1\n")
    assert look(home)["config"].level == "problem" and "nonsense" in look(home)["config"].text


def test_a_damaged_log(home: Home) -> None:
    segment = next((home.store_path / "log").iterdir())
    segment.write_bytes(segment.read_bytes().replace(b"k1", b"k9", 1))
    found = look(home)["log"]
    assert found.level == "problem" and "checksum" in found.text and "verify" in found.hint
    told = status(home)
    assert told["problems"] and "checksum" in str(told["problems"])


def test_torn_tails_and_gaps_are_notes(home: Home) -> None:
    (home.store_path / "torn").mkdir()
    (home.store_path / "torn" / "0-10-0.bin").write_bytes(b"half")
    gap = event(type_="capture.gap", stream="system", payload={"lost": 3})
    asyncio.run(append(home.store_path, [[gap]]))
    found = look(home)
    assert (found["torn tails"].level, found["gaps"].level) == ("note", "note")
    told = status(home)
    assert told["gaps"] == 1 and len(told["notes"]) == 2 and told["problems"] == []  # type: ignore[arg-type]


def test_spool_backlog(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    (home.spool_path / "a-b.jsonl").write_text("{}\n" * 100)
    assert look(home)["spool"].level == "note"
    assert status(home)["spool"] == {"files": 1, "bytes": 300}
    monkeypatch.setattr(checks, "BACKLOG_BYTES", 200)
    assert look(home)["spool"].level == "problem"


def test_a_full_disk(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "LOW_SPACE_BYTES", 2**70)
    assert look(home)["disk"].level == "problem"


def test_a_sidecar_that_does_not_answer_is_a_problem(home: Home) -> None:
    # It holds the lock and says where it is, but nothing listens there.
    with home.lock():
        import os
        import socket

        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            port = unused.getsockname()[1]
        home.write_info(SidecarInfo(os.getpid(), port, "b" * 32, "0.1.0", 1, 0))
        assert look(home)["sidecar"].level == "problem"
        told = status(home)
    assert told["running"] is True and told["sidecar"] is None
    assert "does not answer" in str(told["problems"])
    assert told["log"]["head"] == 4  # type: ignore[index]


def test_a_home_that_does_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    home = Home(tmp_path / "none")

    async def collect() -> dict[str, Check]:
        return {check.name: check async for check in diagnose(home, [sys.executable])}

    found = asyncio.run(collect())
    assert found["home"].level == found["log"].level == "note"
    assert status(home)["problems"] == []
    assert not home.path.exists()
