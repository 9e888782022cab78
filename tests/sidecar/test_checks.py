"""The findings of ``status`` and ``doctor`` about OpenCode, the plugin and the home, and what ``--fix`` mends."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from sidecar.background.hosts.missing_features import MEANINGS, ONE, TWO
from sidecar.care.checks import home as at_home
from sidecar.care.checks.check import Check, scene_of
from sidecar.care.checks.recording import check_journal, check_tables
from sidecar.care.checks.repairs import mend
from sidecar.care.checks.table import diagnose
from sidecar.home import Home, SidecarInfo
from sidecar.install.plugin import FIRST_LINE, Target, uninstall
from sidecar.install.tui import TUI_NAME
from sidecar.install.tui2 import FILE, SETTINGS_NAME
from streams.event import StreamEvent
from streams.identity import system_identity
from streams.log.reader import LogReader
from tests.real.durable import wait_until
from tests.sidecar.checking import LINKED, PROGRAM, doctor, levels, look, programs, set_up, status
from tests.sidecar.cli.helpers import append, run
from tests.streams.builders import event
from tests.streams.unmoved import nothing_moves


def test_all_is_well(healthy_home: Home) -> None:
    found = look(healthy_home)
    assert {check.level for check in found.values()} == {"ok"}
    assert set(found) == {
        *("opencode", "switches", "plugin", "versions", "start-up", "home", "token", "config", "disk"),
        *("background", "sidecar", "links", "log", "clock", "spool", "nats", "terminal", "terminal 2"),
    }  # fmt: skip
    assert "5 records" in found["log"].text


def test_both_opencodes_on_one_path(healthy_home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both programs have the same name, so the second is behind the first. A link to the first is no third program."""
    for name, version in (("two", "opencode v2.0.15"), ("same", "")):
        (tmp_path / name).mkdir()
        if version:
            (tmp_path / name / "opencode").write_text(PROGRAM.format(version))
            (tmp_path / name / "opencode").chmod(0o755)
    (tmp_path / "same" / "opencode").symlink_to(programs(healthy_home) / "opencode")
    monkeypatch.setenv("PATH", f"{tmp_path / 'two'}:{os.environ['PATH']}:{tmp_path / 'same'}")
    found = [(each["level"], each["text"]) for each in doctor(healthy_home) if each["name"] == "opencode"]
    assert found == [
        ("ok", f"2.0.15 at {tmp_path / 'two' / 'opencode'}"),
        ("ok", f"1.18.33 at {programs(healthy_home) / 'opencode'}"),
    ]


@pytest.mark.parametrize(
    ("version", "proven", "is_newer"),
    [
        ("1.18.10", "1.18.33", False),
        ("1.18.34", "1.18.33", True),
        ("1.19.0", "1.18.33", True),
        ("opencode v2.0.7", "2.0.15", False),
        ("opencode v2.3.0", "2.0.15", True),
        ("opencode v3.0.0", "2.0.15", True),
    ],
)
def test_a_version_that_is_not_proven_is_noted(healthy_home: Home, version: str, proven: str, is_newer: bool) -> None:
    (programs(healthy_home) / "opencode").write_text(PROGRAM.format(version))
    found = look(healthy_home)["opencode"]
    assert (found.level, proven in found.text, "newer" in found.text) == ("note", True, is_newer)


@pytest.mark.parametrize(("version", "lacked"), [("1.18.33", ONE), ("0.9.0", ONE), ("2.0.15", TWO), ("3.0.0", TWO)])
def test_what_an_opencode_lacks_is_said_in_one_line(healthy_home: Home, version: str, lacked: frozenset[str]) -> None:
    (programs(healthy_home) / "opencode").write_text(PROGRAM.format(version))
    found = look(healthy_home)["background"]
    assert (found.level, version in found.text) == ("note" if lacked else "ok", True)
    assert {each for each, meaning in MEANINGS.items() if meaning in found.text} == lacked


@pytest.mark.parametrize("version", ["1.17.99", "0.9.0", "opencode2 v0.0.0-next-16350"])
def test_an_opencode_that_is_too_old(healthy_home: Home, version: str) -> None:
    (programs(healthy_home) / "opencode").write_text(PROGRAM.format(version))
    found = look(healthy_home)["opencode"]
    assert found.level == "problem" and "1.18 is the oldest" in found.hint


def test_plugin_missing_twice_broken_or_of_another_home(healthy_home: Home) -> None:
    everywhere, project = Target.everywhere(), Target.project(Path.cwd())
    set_up(healthy_home, project, programs(healthy_home))
    found = look(healthy_home)["copies"]
    assert found.level == "note" and found.text.count("(0.1.0)") == 2
    assert f"durable-stream uninstall --project {Path.cwd()}" in found.hint
    project.plugin.unlink()

    set_up(Home(healthy_home.path / "other"), everywhere, programs(healthy_home))
    assert "another home" in look(healthy_home)["plugin"].text

    set_up(healthy_home, everywhere, programs(healthy_home))
    (programs(healthy_home) / "durable-stream").write_text("#!/bin/sh\nexit 3\n")
    assert "cannot be run" in look(healthy_home)["plugin"].text
    (programs(healthy_home) / "durable-stream").unlink()
    assert "does not exist" in look(healthy_home)["plugin"].text and look(healthy_home)["plugin"].level == "problem"

    everywhere.plugin.unlink()
    assert look(healthy_home)["plugin"].hint.startswith("run `durable-stream install`")


def test_the_npm_package_alone_and_beside_a_plugin_file(
    healthy_home: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """OpenCode 2 writes the entry; a comment and a removal are none."""
    monkeypatch.setenv("DURABLE_STREAM_HOME", str(healthy_home.path))
    settings = Target.everywhere().config / "opencode.json"
    settings.write_text('{"plugins": ["opencode-durable-stream"]}')
    found = look(healthy_home)
    assert found["plugin"].level == "ok" and str(settings) in found["plugin"].text
    assert found["copies"].level == "note" and "opencode plugin remove" in found["copies"].hint
    uninstall(Target.everywhere())
    assert {name: look(healthy_home)[name].level for name in ("plugin", "links")} == {"plugin": "ok", "links": "ok"}
    assert "copies" not in look(healthy_home) and status(healthy_home)["problems"] == []
    monkeypatch.setenv("DURABLE_STREAM_HOME", str(tmp_path / "other"))
    other = look(healthy_home)["plugin"]
    assert other.level == "note" and str(tmp_path / "other") in other.text
    for text in ('{"plugins": ["-opencode-durable-stream"]}', '{\n  // "opencode-durable-stream",\n}'):
        settings.write_text(text)
        assert look(healthy_home)["plugin"].level == "problem"


def test_the_tui_plugin_of_opencode_2_and_what_it_copied(healthy_home: Home, tmp_path: Path) -> None:
    config = tmp_path / "config" / "opencode"
    file, settings = config / FILE, config / SETTINGS_NAME
    assert look(healthy_home)["terminal 2"].level == "ok"
    settings.write_text(json.dumps({"plugins": [(config / TUI_NAME).as_uri(), "mine"]}))
    harmless = look(healthy_home)["terminal 2"]
    assert harmless.level == "ok" and str(settings) in harmless.text
    for break_it in (file.unlink, lambda: file.write_text(f"{FIRST_LINE}\nold")):
        break_it()
        assert levels(healthy_home)["terminal 2"] == "note"
        assert run(healthy_home.path, "doctor", "--fix").out.count("fixed: ") == 1
        assert "terminal 2" not in levels(healthy_home)
    assert json.loads(settings.read_bytes()) == {"plugins": ["mine"]}
    file.write_text("mine")
    theirs = look(healthy_home)["terminal 2"]
    assert theirs.level == "note" and theirs.fix is None


@pytest.mark.parametrize(
    ("name", "value", "level"),
    [
        ("DURABLE_STREAM", "off", "note"),
        ("OPENCODE_PURE", "1", "problem"),
        ("OPENCODE_PURE", "0", "ok"),
        ("OPENCODE_DISABLE_PROJECT_CONFIG", "true", "ok"),  # the plugin for every project is loaded all the same
    ],
)
def test_switches(healthy_home: Home, monkeypatch: pytest.MonkeyPatch, name: str, value: str, level: str) -> None:
    monkeypatch.setenv(name, value)
    found = look(healthy_home)["switches"]
    assert found.level == level and (name in found.text) == (level != "ok")
    assert ("is set here" in str(status(healthy_home))) == (level != "ok")


def test_versions(healthy_home: Home) -> None:
    (programs(healthy_home) / "durable-stream").write_text(PROGRAM.format("durable-stream 0.0.9"))
    found = look(healthy_home)["versions"]
    assert found.level == "note" and f"{programs(healthy_home) / 'durable-stream'} is 0.0.9" in found.text
    (programs(healthy_home) / "durable-stream").write_text(PROGRAM.format("durable-stream 0.1.0"))
    with healthy_home.lock():
        healthy_home.write_info(SidecarInfo(os.getpid(), 9, "b" * 32, "0.0.8", 1, 0))
        found = look(healthy_home)["versions"]
    assert "the running sidecar is 0.0.8" in found.text and "durable-stream stop" in found.hint


def test_no_opencode_ever_linked(healthy_home: Home) -> None:
    healthy_home.log_path.unlink()
    found = look(healthy_home)["links"]
    assert found.level == "note" and "ever connected" in found.text and "--pure" in found.hint
    assert "the records came through the spool" in found.text
    healthy_home.log_path.write_text(LINKED.replace("1.18.33", "recording"))
    assert look(healthy_home)["links"].level == "note"
    healthy_home.log_path.with_name("sidecar.log.1").write_text(LINKED)
    found = look(healthy_home)["links"]
    assert found.level == "ok" and "2026-11-22 01:53:48" in found.text


def test_a_start_that_waits_for_npm(healthy_home: Home, tmp_path: Path) -> None:
    """Here, in a parent, in the user's home, and in a project that only the log knows."""
    known = tmp_path / "known" / "below"
    known.mkdir(parents=True)
    (tmp_path / "known" / ".git").mkdir()
    session = event(
        type_="lifecycle.session.created", stream="ses_k", payload={"session": "ses_k", "directory": str(known)}
    )
    gone = event(
        type_="lifecycle.session.created", stream="ses_g", payload={"session": "ses_g", "directory": "/no/such/project"}
    )
    asyncio.run(append(healthy_home.store_path, [[session], [gone]]))
    assert look(healthy_home)["start-up"].level == "ok"
    directories = [tmp_path / name / ".opencode" for name in ("project", "user", "known")]
    for directory in directories:
        directory.mkdir(parents=True)

    def waiting(*arguments: str) -> list[dict[str, Any]]:
        return [
            check
            for check in doctor(healthy_home, *arguments)
            if check["name"] == "start-up" and check["level"] != "ok"
        ]

    assert [directory for check in waiting() for directory in directories if str(directory) in check["text"]] == [
        *directories
    ]
    assert {check["level"] for check in waiting()} == {"problem"}
    assert all(check["fixed"] and check["failed"] is None for check in waiting("--fix"))
    assert waiting() == []
    uninstall(Target.everywhere())
    assert [list(directory.iterdir()) for directory in directories] == [[], [], []]


def test_a_stub_that_keeps_a_tools_packages_away_and_a_setting_of_the_users(healthy_home: Home) -> None:
    config = Target.everywhere().config
    (config / "tool").mkdir()
    (config / "tool" / "mine.ts").write_text("")
    check = look(healthy_home)["start-up"]
    assert "keeps OpenCode from installing them" in check.text and check.level == "problem"
    assert run(healthy_home.path, "doctor", "--fix").out.count("fixed: ") == 1
    assert look(healthy_home)["start-up"].level == "ok"
    (config / ".npmrc").write_text("fetch-retries=7\n")
    found = look(healthy_home)["start-up"]
    assert found.level == "note" and found.fix is None and "set fetch-retries=0" in found.hint


def test_fixing(healthy_home: Home) -> None:
    """All that can be fixed is fixed, with no finding left; the plugin then names the executable that fixed it."""
    (programs(healthy_home) / "durable-stream").unlink()
    healthy_home.path.chmod(0o755)
    healthy_home.token_path.chmod(0o644)
    assert {"plugin": "problem", "home": "problem", "token": "problem"}.items() <= levels(healthy_home).items()
    mended = {check["name"]: check["fix"] for check in doctor(healthy_home, "--fix") if check["fixed"]}
    assert mended == {"plugin": "install", "home": "close", "token": "renew token"}
    assert healthy_home.path.stat().st_mode & 0o777 == 0o700
    assert not healthy_home.token_path.exists()
    assert {check["name"] for check in doctor(healthy_home) if check["level"] == "problem"} == set()
    uninstall(Target.everywhere())
    assert run(healthy_home.path, "doctor").code == 1
    done = run(healthy_home.path, "doctor", "--fix")
    assert done.code == 0 and done.out.endswith("\n1 finding fixed, no problems left\n") and "fixed: wrote" in done.out
    assert Target.everywhere().plugin.is_file()


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
    assert [problem[:22] for problem in told["problems"]] == ["plugin: not installed,"]
    assert told["verdict"] == "Not installed:"
    assert not home.path.exists()


def test_a_backlog_is_taken_in(healthy_home: Home) -> None:
    (healthy_home.spool_path / f"{'a' * 32}-{'1' * 16}.jsonl").write_text('{"spool": 2, "pid": 2147483646}\n')
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


@pytest.mark.parametrize(
    ("records", "fault", "level"), [(3, None, None), (10**6, None, "note"), (3, "it is full", "problem")]
)
def test_a_journal_that_cannot_move_is_told_with_its_size(
    healthy_home: Home, records: int, fault: str | None, level: str | None
) -> None:
    waiting = {"records": records, "files": 1, "bytes": 2048, "fault": fault}
    scene = scene_of(healthy_home)._replace(answer={"log": {"journal": waiting}})
    assert [check.level for check in check_journal(scene)] == ([] if level is None else [level])
    for check in check_journal(scene):
        assert "2.0 KiB" in check.text and f"{records} records" in check.text and (fault or "") in check.text


@pytest.mark.parametrize(
    ("records", "fault", "level"), [(3, None, None), (10**6, None, "note"), (3, "it is full", "problem")]
)
def test_tables_that_lack_records_are_told(
    healthy_home: Home, records: int, fault: str | None, level: str | None
) -> None:
    waiting = {"records": 0, "bytes": 0, "fault": None, "derived": {"records": records, "fault": fault}}
    scene = scene_of(healthy_home)._replace(answer={"log": {"journal": waiting}})
    assert [check.level for check in check_tables(scene)] == ([] if level is None else [level])
    for check in check_tables(scene):
        assert f"{records} records" in check.text and (fault or "") in check.text


def test_what_waits_in_the_journal_of_a_log_at_rest_is_no_fault(healthy_home: Home) -> None:
    with nothing_moves():
        asyncio.run(append(healthy_home.store_path, [[event("more")]]))
    assert LogReader(healthy_home.store_path).waiting()["records"] == 1
    assert "problem" not in levels(healthy_home).values() and "journal" not in look(healthy_home)
