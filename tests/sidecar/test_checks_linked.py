"""What ``status`` and ``doctor`` say of linked OpenCodes, of services without the plugin, and of channels."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from sidecar.background.hosts.facts import read_facts
from sidecar.background.people.channels import channel_name
from sidecar.care.checks import not_connected
from sidecar.care.checks.channels import check_channels, check_turns, check_urls
from sidecar.care.checks.check import Check, Scene, scene_of
from sidecar.care.checks.linked import check_links
from sidecar.care.checks.not_connected import check_sandboxes, check_unlinked
from sidecar.care.checks.opencode import check_opencode, check_services
from sidecar.care.checks.recording import survey
from sidecar.care.checks.table import BEFORE_THE_LOG, WITH_THE_LOG
from sidecar.cli.printing.output import Output
from sidecar.cli.shared.state import print_status
from sidecar.home import Home, SidecarInfo
from sidecar.install.extras import extra_command
from sidecar.install.plugin import Target, install, shim_path
from streams.event import StreamEvent
from tests.sidecar.cli.helpers import append
from tests.streams.builders import event


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


def test_a_service_in_another_sandbox_is_named_with_what_differs(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / ".local" / "state" / "opencode" / "service.json"
    file.parent.mkdir(parents=True)
    facts, service_pid = read_facts(os.getpid()), os.getppid()
    status = facts.status + "\nNoNewPrivs: 1"
    other = facts._replace(status=status, spaces={**facts.spaces, "mnt": "mnt:[1]"}, is_beside_one=False, limits="")
    known = {os.getpid(): facts, service_pid: other}
    monkeypatch.setattr(not_connected, "read_facts", known.get)
    with socket.create_server(("127.0.0.1", 0)) as service:
        about = {"id": "i", "url": f"http://127.0.0.1:{service.getsockname()[1]}", "pid": service_pid, "password": "p"}
        file.write_text(json.dumps(about))
        file.chmod(0o600)
        (check,) = check_sandboxes(scene)
        assert check.level == "note" and f"pid {service_pid}" in check.text
        assert "NoNewPrivs" in check.text and "ns.mnt" in check.text and "ns.net" not in check.text.split(":")[0]
        known[service_pid] = facts._replace(limits="", process="another")
        assert check_sandboxes(scene) == [], "limits are no sandbox"
        known[service_pid] = facts._replace(status="")
        assert check_sandboxes(scene) == [], "the system does not tell"


NOTHING: dict[str, Any] = {"problems": [], "notes": [], "asks": [], "work": []}
NONE: dict[str, Any] = NOTHING | {"home": "/home/x/.durable-stream", "running": True, "verdict": "All is well"}
LOG = {"head": -1, "pruned": 0, "streams": 0, "damaged": False}
SIDECAR = {"pid": 1, "port": 2, "version": "0.1.0", "uptime_ms": 3}


def link(pid: int, directory: str, *, delivers: bool = True, service: str = "") -> dict[str, Any]:
    named = {"pid": pid, "directory": directory, "opencode_version": "1.18.33"}
    return {**named, "delivers": delivers, "service": service}


def linked(capsys: pytest.CaptureFixture[str], *links: dict[str, Any], **more: Any) -> list[str]:
    """The lines of ``status`` about these links."""
    found = {
        "sidecar": SIDECAR,
        "links": list(links),
        "log": LOG,
        "spool": {"files": 0, "marks": 0},
        "waiting": 0,
        "gaps": 0,
    }
    print_status(Output(), {**NONE, **found, **more})
    lines = capsys.readouterr().out.splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("linked"))
    last = next(n for n, line in enumerate(lines) if line.startswith("log"))
    return [line[9:] for line in lines[first:last]]


def test_each_headless_one_is_named_once_whatever_its_directories_are(capsys: pytest.CaptureFixture[str]) -> None:
    works = [link(7, f"/worktrees/int_{n}", delivers=False) for n in range(3)]
    assert linked(capsys, link(5, "/shop"), *works, link(9, "/blog"), headless=[7, 9]) == [
        "OpenCode 1.18.33 in /shop, pid 5",
        "OpenCode 1.18.33, headless, for background work, pid 7",
        "OpenCode 1.18.33, headless, for background work, pid 9",
    ]


def test_a_process_with_several_directories_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    links = [link(5, "/shop", delivers=False), link(5, "/shop"), link(5, "/blog", delivers=False)]
    assert linked(capsys, *links) == ["OpenCode 1.18.33 in /shop and 1 more, pid 5"]
    assert linked(capsys, link(5, "/a", delivers=False)) == ["OpenCode 1.18.33 in /a, pid 5, no hooks yet"]


def test_a_service_and_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    services = [{"registration": "r", "state": "read"}]
    assert linked(capsys, link(5, "", service="r"), services=services) == ["OpenCode 1.18.33, its service, pid 5, read"]
    assert linked(capsys) == ["no OpenCode"]


def test_a_service_that_was_not_asked_yet_is_not_called_dead(tmp_path: Path) -> None:
    scene = scene_of(Home(tmp_path), quick=True)
    found = {}
    for state in ("starting", "absent", "refused"):
        service = {"registration": "r", "state": state, "version": ""}
        (check,) = check_services(scene._replace(answer={"services": [service]}))
        found[state] = check.level, bool(check.hint)
    assert found == {"starting": ("note", False), "absent": ("note", True), "refused": ("problem", True)}


def test_doctor_counts_processes(tmp_path: Path) -> None:
    scene = scene_of(Home(tmp_path), quick=True)
    links = [link(7, f"/worktrees/int_{n}") for n in range(6)]
    (found,) = check_links(scene._replace(answer={"links": links, "headless": [7]}))
    assert found.text == "1 OpenCode connected now, including 1 headless one"
    (found,) = check_links(scene._replace(answer={"links": [link(5, "/shop"), link(6, "/shop")], "headless": []}))
    assert found.text == "2 OpenCodes connected now"


PHONE, CHAT = "json://u:geheim@phone", "ntfy://topic"


def answered(key: str, url: str, error: str = "", role: str = "output") -> StreamEvent:
    payload = {"message": "alr_1", "channel": channel_name(url), "error": error}
    how = "message.failed" if error else "message.sent"
    return event(key, stream="agent/messages", type_=how, payload=payload, metadata={"role": role})


@pytest.fixture
def notifying_home(home: Home) -> Home:
    home.config_path.write_text(f"[notify]\nurls = {json.dumps([PHONE, CHAT])}\n")
    return home


def configured(home: Home, *urls: str) -> list[Check]:
    home.config_path.write_text(f"[notify]\nurls = {json.dumps(urls)}\n")
    return check_urls(scene_of(home, ("durable-stream",), home.path, {"HOME": str(home.path), "PATH": ""}))


@pytest.mark.parametrize(
    ("settings", "levels"),
    [("", []), ('turns = "away"', ["note"]), ('turns = "away"\ndesktop = true', ["ok"]), ("desktop = true", [])],
)
def test_whether_long_turns_ring_is_told(home: Home, settings: str, levels: list[str]) -> None:
    assert check_turns in BEFORE_THE_LOG
    home.config_path.write_text(f"[notify]\n{settings}\n")
    scene = scene_of(home, ("durable-stream",), home.path, {"HOME": str(home.path), "PATH": ""})
    assert [check.level for check in check_turns(scene)] == levels


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # apprise's own
def test_a_url_that_apprise_cannot_use_is_found_before_the_first_message(
    notifying_home: Home, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert check_urls in BEFORE_THE_LOG
    assert configured(notifying_home, PHONE, CHAT) == [] == configured(notifying_home)
    (check,) = configured(notifying_home, "nfty://geheim", CHAT, "tgram://geheim", "geheim")
    assert (check.name, check.level) == ("notify", "note") and "`urls` in [notify]" in check.text
    names = [channel_name(url) for url in ("nfty://geheim", "tgram://geheim", "geheim")]
    assert check.text.partition(": ")[0] == ", ".join(names) and names[2].startswith("url:")
    assert "geheim" not in "".join([str(check), *capfd.readouterr(), caplog.text])


def test_urls_without_the_library_name_the_command_that_installs_it(
    notifying_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    (check,) = configured(notifying_home, PHONE, CHAT)
    assert "apprise" in check.text and extra_command("notify") in check.text


def found(home: Home, *answers: StreamEvent) -> list[Check]:
    asyncio.run(append(home.store_path, [answers]))
    scene = scene_of(home, ("durable-stream",), home.path, {"HOME": str(home.path), "PATH": ""})
    return check_channels(scene._replace(survey=asyncio.run(survey(home, 0))))


def test_a_channel_whose_newest_message_failed_is_named_without_its_url(notifying_home: Home) -> None:
    assert check_channels in WITH_THE_LOG
    (note,) = found(
        notifying_home, answered("a", CHAT, "HTTP 500"), answered("b", PHONE, "HTTP 400"), answered("c", CHAT)
    )
    assert (note.name, note.level) == ("notify", "note")
    assert note.text == f"{channel_name(PHONE)} did not accept the newest message: HTTP 400"
    assert "durable-stream notify test" in note.hint
    (note,) = found(notifying_home, answered("d", PHONE), answered("e", CHAT, "HTTP 500"))
    assert note.text.startswith(channel_name(CHAT))
    assert found(notifying_home, answered("f", CHAT)) == []


def test_what_is_no_longer_configured_and_what_no_agent_said_do_not_count(notifying_home: Home) -> None:
    assert found(notifying_home, answered("a", "ntfy://old", "HTTP 500"), answered("b", CHAT, "x", role="input")) == []
    notifying_home.config_path.write_text("[")
    assert found(notifying_home, answered("c", CHAT, "HTTP 500")) == []


@pytest.mark.parametrize(
    ("prefix", "begins"),
    [
        ("/home/ada/.local/share/pipx/venvs/opencode-durable-stream", "pipx inject opencode-durable-stream "),
        ("/home/ada/.local/share/uv/tools/opencode-durable-stream", "uv pip install --python /home/ada/"),
        ("/home/ada/venv", "/home/ada/venv/bin/python -m pip install "),
    ],
)
def test_it_names_the_libraries_and_the_tool(prefix: str, begins: str) -> None:
    command = extra_command("notify", prefix)
    assert command.startswith(begins) and "'apprise" in command
    assert "ruff" not in command
