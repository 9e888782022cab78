"""The real terminal of OpenCode 2: what is typed there is recorded, its screen shows nothing of ours, nothing stays."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from sidecar.install.tui import TUI_NAME
from sidecar.install.tui2 import SETTINGS_NAME
from tests.real.durable import DurableStream, wait_until
from tests.real.model_server import ModelServer
from tests.real.opencode2 import RealOpenCode2
from tests.real.recorded2 import assert_recorded, outcomes
from tests.real.terminal import READY, Terminal
from tools.install_opencode import VERSION_2, binary_path

pytestmark = pytest.mark.real_opencode

PROMPT = 'CALL:shell {"command": "echo out"} THEN: SAY:hello from the terminal'


def test_a_prompt_in_the_terminal_is_recorded_and_its_screen_is_opencodes_own_until_uninstall(
    model: ModelServer, tmp_path: Path
) -> None:
    with DurableStream(tmp_path / "home") as durable, opencode2(model) as client:
        client.start()
        client.api("GET", f"/api/model?location[directory]={client.project}")  # it looks for plugins there
        assert "opencode service restart" in durable.in_project(client, "install")
        durable.wait_linked()
        wait_until(lambda: services(durable, client) == [("ok", "")], "the running service loads the plugin by itself")
        client.stop_in()
        client.start()
        assert [level for level, _ in services(durable, client)] == ["note"], "nothing was used yet"
        ours = screen_of(client)
        assert services(durable, client) == [("ok", "")]
        (session,) = client.api("GET", "/api/session")["data"]
        records = assert_recorded(durable, client, session["id"])
        assert f"OpenCode {VERSION_2}, its service, pid {client.pid}, read" in durable.in_project(client, "status")
        settings = client.config_directory / SETTINGS_NAME
        assert TUI_NAME in settings.read_text(), "the terminal copied it from the tui.json"
        assert f"removed {TUI_NAME} from {settings}" in durable.in_project(client, "uninstall").splitlines()
        assert TUI_NAME not in settings.read_text(), "only the other settings of OpenCode 1 are left"
        assert not [path for path in client.config_directory.rglob("*") if "durable-stream" in path.name]
        durable.end_with(client)
        client.start()
        client.prompt(unrecorded := client.new_session(), "SAY:not recorded")
        client.wait(unrecorded)
        assert durable.running() is None and list(durable.whole_log()) == [session["id"]]
    # The title may come at any time.
    records = [record for record in records if "renamed" not in record["event"]["type"]]
    types = [record["event"]["type"] for record in records]
    assert types[:3] == ["lifecycle.session.created", "human.input", "turn.started"]
    assert outcomes(records, session["id"]) == ["completed"]
    assert records[1]["event"]["payload"]["parts"] == [{"type": "text", "text": PROMPT}]
    with opencode2(model) as client:
        client.start()
        assert ours == screen_of(client)


def services(durable: DurableStream, client: RealOpenCode2) -> list[tuple[str, str]]:
    """The level and the hint of what ``doctor`` says of services."""
    found = map(json.loads, durable.in_project(client, "doctor", "--json").splitlines())
    return [(each["level"], each["hint"]) for each in found if each["name"] == "opencode 2"]


def opencode2(model: ModelServer) -> RealOpenCode2:
    """An OpenCode 2 whose service is not running yet."""
    return RealOpenCode2(binary_path(VERSION_2), model.port, serve=False)


def screen_of(client: RealOpenCode2) -> list[str]:
    """The terminal's screen after one prompt, without the times and the directory that differ in each run."""
    with Terminal([str(client.binary)], client.project, client.environment()) as screen:
        screen.wait_for(READY)
        screen.wait_for("Mock 1 Mock")  # before that, it does not send
        screen.prompt(PROMPT, "hello from the terminal")
        lines = screen.wait_until(is_drawn, "the end of the turn")
    # The directory goes first, which may be cut: the end of its random name can look like a time.
    lines = [re.sub(rf"\S*{client.root.name}", "/root", line) for line in lines]
    return [re.sub(r"\d+(\.\d+)?(m?s\b| tok/s)", "0s", line) for line in lines]


def is_drawn(lines: list[str]) -> bool:
    """The turn's time and the tokens of its last step are there."""
    return all(any(re.search(sign, line) for line in lines) for sign in (r"Mock 1 · \d", r"\d \(\d+%\)"))
