"""What `doctor` says of the channels to a person that did not take the newest message."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest

from sidecar.background.people.channels import channel_name
from sidecar.care.checks.channels import check_channels, check_turns, check_urls
from sidecar.care.checks.check import Check, scene_of
from sidecar.care.checks.recording import survey
from sidecar.care.checks.table import BEFORE_THE_LOG, WITH_THE_LOG
from sidecar.home import Home
from sidecar.install.extras import extra_command
from streams.event import StreamEvent
from tests.sidecar.cli.helpers import append
from tests.streams.builders import event

PHONE, CHAT = "json://u:geheim@phone", "ntfy://topic"


def answered(key: str, url: str, error: str = "", role: str = "output") -> StreamEvent:
    payload = {"alert": "alr_1", "channel": channel_name(url), "error": error}
    how = "alert.failed_to" if error else "alert.sent_to"
    return event(key, stream="agent/alerts", type_=how, payload=payload, metadata={"role": role})


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
    return check_channels(scene._replace(survey=asyncio.run(survey(home))))


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
