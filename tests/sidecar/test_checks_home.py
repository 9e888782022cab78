"""The findings of ``status`` and ``doctor`` about the home, its log and its sidecar, in every state."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path

import pytest

from sidecar.care.checks import home as at_home
from sidecar.care.checks.check import Check, scene_of
from sidecar.care.checks.mending import mend
from sidecar.care.checks.table import diagnose
from sidecar.home import Home, SidecarInfo
from streams.event import StreamEvent
from streams.identity import system_identity
from tests.real.durable import wait_until
from tests.sidecar.checking import doctor, look, status
from tests.sidecar.cli.helpers import append, run
from tests.streams.builders import event


def test_modes(healthy_home: Home) -> None:
    healthy_home.token_path.chmod(0o644)
    assert look(healthy_home)["token"].level == "problem"
    healthy_home.path.chmod(0o755)
    assert f"chmod 700 {healthy_home.path}" in look(healthy_home)["home"].hint


def test_config(healthy_home: Home) -> None:
    healthy_home.config_path.write_text("[nonsense]\nx = 1\n")
    assert look(healthy_home)["config"].level == "problem" and "nonsense" in look(healthy_home)["config"].text


def test_a_configured_port(healthy_home: Home) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        healthy_home.config_path.write_text(f"[link]\nport = {port}\n")
        found = look(healthy_home)["port"]
        assert found.level == "problem" and "another program is using it" in found.text
        with healthy_home.lock():
            healthy_home.write_info(SidecarInfo(os.getpid(), port, "b" * 32, "0.1.0", 1, 0))
            assert at_home.check_port(scene_of(healthy_home))[0].level == "ok"
            healthy_home.write_info(SidecarInfo(os.getpid(), port - 1, "b" * 32, "0.1.0", 1, 0))
            assert at_home.check_port(scene_of(healthy_home))[0].level == "note"
    healthy_home.remove_info()
    assert look(healthy_home)["port"].text == f"{port} is free"


def test_the_clock(healthy_home: Home) -> None:
    later = system_identity().now_ms() + 3 * 3_600_000
    os.utime(healthy_home.token_path, (later / 1000, later / 1000))
    found = look(healthy_home)["clock"]
    assert found.level == "note" and str(healthy_home.token_path) in found.text
    ahead = StreamEvent.trusted({**event(key="ahead").fields(), "ts": later})
    asyncio.run(append(healthy_home.store_path, [[ahead]]))
    assert "the newest event is 2h 59m ahead" in look(healthy_home)["clock"].text


def test_a_store_that_cannot_be_written(healthy_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    healthy_home.store_path.chmod(0o500)
    with monkeypatch.context() as asked:
        # Root writes everywhere, so the answer is given for it.
        asked.setattr("os.access", lambda path, mode: path.stat().st_mode & 0o200 != 0)
        found = at_home.check_home(scene_of(healthy_home))[0]
    assert found.level == "problem" and f"{healthy_home.store_path} cannot be written" in found.text and found.fix
    asyncio.run(mend(healthy_home, [], found.fix))
    assert healthy_home.store_path.stat().st_mode & 0o777 == 0o700


def test_a_home_that_does_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    home = Home(tmp_path / "none")

    async def collect() -> dict[str, Check]:
        return {check.name: check async for check in diagnose(home, [sys.executable], system_identity())}

    found = asyncio.run(collect())
    assert found["home"].level == found["log"].level == "note"
    told = status(home)
    assert [problem[:22] for problem in told["problems"]] == ["no plugin is installed"]
    assert told["verdict"] == "Not installed:"
    assert not home.path.exists()


def test_a_backlog_is_taken_in(healthy_home: Home) -> None:
    (healthy_home.spool_path / f"{'a' * 32}-{'1' * 16}.jsonl").write_text('{"spool": 1, "pid": 2147483646}\n')
    told = {check["name"]: check for check in doctor(healthy_home, "--fix")}
    try:
        assert "started a sidecar" in told["spool"]["fixed"]
        assert "authenticated" in look(healthy_home)["sidecar"].text
        wait_until(lambda: not list(healthy_home.spool_path.iterdir()), "an empty spool")
    finally:
        run(healthy_home.path, "stop")


def test_a_sidecar_that_does_not_answer_is_a_problem(healthy_home: Home) -> None:
    # It holds the lock and says where it is, but nothing listens there.
    with healthy_home.lock():
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            port = unused.getsockname()[1]
        healthy_home.write_info(SidecarInfo(os.getpid(), port, "b" * 32, "0.1.0", 1, 0))
        assert look(healthy_home)["sidecar"].level == "problem"
        told = status(healthy_home)
    assert told["running"] is True and told["sidecar"] is None
    assert "does not answer" in str(told["problems"])
    assert told["log"]["head"] == 4  # type: ignore[index]


def test_torn_tails_and_gaps_are_notes(healthy_home: Home) -> None:
    (healthy_home.store_path / "torn").mkdir()
    (healthy_home.store_path / "torn" / "0-10-0.bin").write_bytes(b"half")
    gap = event(type_="capture.gap", stream="system", payload={"lost": 3})
    asyncio.run(append(healthy_home.store_path, [[gap]]))
    found = look(healthy_home)
    assert (found["torn tails"].level, found["gaps"].level) == ("note", "note")
    told = status(healthy_home)
    assert told["gaps"] == 1 and len(told["notes"]) == 2 and told["problems"] == []  # type: ignore[arg-type]


def test_leftovers_are_named_with_the_command_that_takes_them_away(healthy_home: Home) -> None:
    (healthy_home.store_path / "store.json.new").write_bytes(b"{")
    (healthy_home.store_path / "hints").mkdir()
    (healthy_home.store_path / "hints" / "cursor-mirror").write_bytes(b"?")
    found = look(healthy_home)["leftovers"]
    assert found.level == "note" and "store.json.new, hints/cursor-mirror" in found.text
    assert "durable-stream repair" in found.hint
    assert run(healthy_home.path, "repair").code == 0 and "leftovers" not in look(healthy_home)
