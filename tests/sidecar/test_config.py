"""The configuration and its mistakes; which release is newer; starting, stopping and idling of components."""

from __future__ import annotations

import asyncio
import json
import os
import re
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from sidecar.care.checks.check import scene_of
from sidecar.care.checks.recording import check_start
from sidecar.components import wait_idle
from sidecar.config import ConfigError, load_config
from sidecar.home import Home
from sidecar.version import VERSION, is_newer
from tests.sidecar.support import HANG_SECONDS, REPOSITORY


@pytest.mark.parametrize(
    ("one", "other", "newer"),
    [
        ("0.1.0", "0.1.0", False),
        ("0.1.1", "0.1.0", True),
        ("0.10.0", "0.9.9", True),
        ("1.0.0", "0.99.99", True),
        ("0.1.0", "1.0.0", False),
        ("0.2.0.dev1", "0.1.0", True),
        ("0.1.0-beta", "0.1.0", False),
        ("x", "0.1.0", False),
        ("0.1.0", "", False),
        ("9" * 400 + ".0.0", "0.1.0", False),
    ],
)
def test_a_later_release_is_newer_and_what_is_no_release_is_not(one: str, other: str, newer: bool) -> None:
    assert is_newer(one, other) is newer


def test_shim_and_sidecar_are_of_one_release() -> None:
    """Otherwise the shim would ask its own sidecar to make way."""
    source = (REPOSITORY / "plugin-shim" / "src" / "version.js").read_text()
    assert re.findall(r'SHIM_VERSION = "(.*?)"', source) == [VERSION]
    assert json.loads((REPOSITORY / "plugin-shim" / "package.json").read_text())["version"] == VERSION


class Part:
    def __init__(self) -> None:
        self.is_owing = False
        self.asked = asyncio.Event()

    async def start(self, stack: AsyncExitStack) -> None: ...

    def owes(self) -> bool:
        self.asked.set()
        return self.is_owing


async def nothing() -> int:
    return 0


async def test_one_component_that_owes_keeps_the_sidecar() -> None:
    first, second = Part(), Part()
    second.is_owing = True
    idle = asyncio.create_task(wait_idle([first, second], 0.0, nothing))
    async with asyncio.timeout(HANG_SECONDS):
        for _ in range(5):
            second.asked.clear()
            await second.asked.wait()
        assert not idle.done()
        second.is_owing = False
        await idle


async def test_the_last_look_may_find_work_and_the_time_begins_again() -> None:
    found = [2, 1, 0]

    async def look() -> int:
        return found.pop(0)

    async with asyncio.timeout(HANG_SECONDS):
        await wait_idle([Part()], 0.0, look)
    assert found == []


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("DURABLE_STREAM"):
            monkeypatch.delenv(name)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(text)
    return path


def test_a_missing_file_gives_the_defaults(tmp_path: Path) -> None:
    config = load_config(tmp_path / "config.toml")
    assert config == load_config(None)
    assert config.store.max_bytes == 0
    assert (config.link.port, config.link.idle_exit_seconds) == (0, 600)
    assert (config.redact.enabled, config.redact.patterns, config.redact.keys) == (True, {}, ())
    assert config.capture.exclude == ()


def test_flags_win_over_the_environment_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(
        tmp_path, '[link]\nport = 1\nidle_exit_seconds = 1\nscripts_may = ["fork"]\n[store]\nmax_bytes = 8192\n'
    )
    monkeypatch.setenv("DURABLE_STREAM_LINK__PORT", "2")
    monkeypatch.setenv("DURABLE_STREAM_LINK__IDLE_EXIT_SECONDS", "2")
    config = load_config(path, link={"port": 3})
    assert (config.link.port, config.link.idle_exit_seconds, config.link.scripts_may) == (3, 2, ("fork",))
    assert config.store.max_bytes == 8192


def test_the_other_variables_of_the_product_are_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DURABLE_STREAM", "off")
    monkeypatch.setenv("DURABLE_STREAM_HOME", "/x")
    monkeypatch.setenv("DURABLE_STREAM_COMMAND", "x")
    load_config(None)


def test_lists_and_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/u")
    path = written(
        tmp_path,
        '[redact]\nenabled = false\nkeys = ["pin"]\n[redact.patterns]\nbadge = "B-[0-9]+"\n'
        '[capture]\nexclude = ["/a", "~/b"]\n',
    )
    config = load_config(path)
    assert config.redact.patterns == {"badge": "B-[0-9]+"}
    assert config.redact.keys == ("pin",)
    assert config.capture.exclude == (Path("/a"), Path("/home/u/b"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[link]\nport =\n", "line 2"),
        ("[link]\nport = 1\nport = 2\n", "line 3"),
        ('[redact.patterns]\nbad = "("\n', "bad: not a regular expression"),
        ('[redact]\nallow = ["("]\n', "allow.0: not a regular expression"),
        ('[redact]\ndisable = ["jwt", "jvt"]\n', "no rule is named jvt; the rules are"),
        ('[capture]\nexclude = ["a/b"]\n', "must be absolute"),
        ('[nats]\nmode = "external"', 'mode "external" needs `servers`'),
        ('[nats]\nmode = "outside"', "nats.mode"),
        ('[nats]\nservers = "nats://h"', "must be a list"),
        ('[nats]\nservers = ["h:4222"]', "must be like nats://host:4222"),
        ('[nats]\nservers = ["http://h:4222"]', "must be like nats://host:4222"),
        ('[nats]\nservers = ["tls://ada:geheim@h:99999"]', "must be like nats://host:4222"),
        ('[nats]\ncert_dir = "/c"', "`cert_dir` is set but has no effect without TLS"),
        ('[nats]\ntls_hostname = "h"\nservers = ["nats://h"]', "`tls_hostname` is set but has no effect without TLS"),
        ('[nats]\ncredentials = "ada.creds"', "must be absolute"),
        ("[metrics]\nlevel = 'DEBUG'", "metrics.level"),
    ],
)
def test_a_mistake_names_the_file_and_the_place_without_a_secret(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as told:
        load_config(path)
    assert str(path) in str(told.value)
    assert said in str(told.value) and "geheim" not in str(told.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[store]\nmax_bytes = "many"', "store.max_bytes: must be a whole number, not 'many'"),
        ("[store]\nmax_bytes = -5", "store.max_bytes: must be at least 0, not -5"),
        ("[link]\nport = 70000", "link.port: must be at most 65535, not 70000"),
        ("[link]\nport = 1.5", "link.port: must be a whole number, not 1.5"),
        ("[link]\nport = [1]", "link.port: must be a whole number"),
        ("[link]\nidle_exit_seconds = 0", "link.idle_exit_seconds: must be above 0, not 0"),
        ('[link]\nidle_exit_seconds = "x"', "link.idle_exit_seconds: must be a number, not 'x'"),
        ("[link]\nprot = 1", "unknown key link.prot (did you mean link.port?)"),
        (
            "[store]\nzzz = 1",
            "unknown key store.zzz (the keys are max_age_days, max_bytes)",
        ),
        ("lnk = 1", "unknown key lnk (did you mean link?)"),
        ("link = 1", "link: must be a section of keys and values, not 1"),
        ('[redact]\nenabled = "perhaps"', "redact.enabled: must be true or false, not 'perhaps'"),
        ('[redact]\npatterns = ["a"]', 'redact.patterns: must be a table, such as { name = "value" }'),
        ("[redact]\nkeys = [1]", "redact.keys.0: must be a string, not 1"),
        ('[capture]\nexclude = "x"', 'capture.exclude: must be a list, such as ["a", "b"], not \'x\''),
        ("[capture]\nexclude = [1]", "capture.exclude.0: must be a path as a string, not 1"),
        ('[notify]\nquiet_hours = "25:00-07:00"', "notify.quiet_hours: must look like 22:00-07:00, not '25:00-07:00'"),
        ("[notify]\nquiet_hours = 22", "notify.quiet_hours: must be a string, not 22"),
        (
            '[notify]\nanswer_host = "0.0.0.0"\nanswer_port = 1',
            "notify: `answer_host` is every address of this machine, so links need `answer_url`",
        ),
        ('[notify]\nanswer_host = "h"', "notify.answer_host: must look like 127.0.0.1, not 'h'"),
        ('[notify]\nanswer_url = "h:1"', "notify.answer_url: must look like https://answers.example.org, not 'h:1'"),
        ('[nats]\ninbox_prefix = "a.>"', "nats.inbox_prefix: must look like _INBOX, not 'a.>'"),
        ('[redact]\nliterals = {a = "abc"}', "redact.literals.a: must have at least 4 characters"),
        ('[phantom]\nisolation = "x"', "phantom.isolation: must be 'auto', 'copy' or 'shared', not 'x'"),
    ],
)
def test_a_mistake_is_told_in_plain_words(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as told:
        load_config(path)
    assert str(told.value) == f"{path}: {said}"


def test_a_variable_that_has_to_be_json_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DURABLE_STREAM_REDACT__KEYS", "pin")
    with pytest.raises(ConfigError, match=r"environment DURABLE_STREAM_REDACT__KEYS: .* as JSON"):
        load_config(None)


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as told:
        load_config(written(tmp_path, "[link]\na = 1\nb = 2\n"))
    assert "link.a" in str(told.value)
    assert "link.b" in str(told.value)
    assert "; " not in str(told.value), "what follows a semicolon is shown as a hint"


def test_the_advice_names_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, right = written(tmp_path, "[link]\nport = -1\n"), tmp_path / "none.toml"
    in_the_file = f"fix {path}, or delete it to use the defaults"
    assert advice(path) == in_the_file
    monkeypatch.setenv("DURABLE_STREAM_LINK__IDLE_EXIT_SECONDS", "0")
    assert advice(path) == f"{in_the_file}; fix or unset that variable"
    assert advice(right) == "fix or unset that variable"
    monkeypatch.setenv("DURABLE_STREAM_REDACT__KEYS", "pin")
    assert advice(right) == "fix or unset that variable"
    path.write_text("[")
    assert advice(path) == in_the_file


def test_a_start_that_failed_shows_the_whole_fault(tmp_path: Path) -> None:
    home = Home(tmp_path)
    fault = f"{home.config_path}: unknown key link.prot (did you mean link.port?)"
    home.log_path.write_text(f"2026-11-22 01:53:48,183 ERROR sidecar: could not serve: {fault}\n")
    (check,) = check_start(scene_of(home, ("durable-stream",), tmp_path, {"HOME": str(tmp_path), "PATH": ""}))
    assert check.text.endswith(f": {fault}") and "durable-stream serve" in check.hint


def advice(path: Path) -> str:
    with pytest.raises(ConfigError) as told:
        load_config(path)
    return told.value.advice


def test_a_mistake_in_the_environment_or_a_flag_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, "[link]\nport = 1\n")
    with pytest.raises(ConfigError, match=r"command line: link\.port"):
        load_config(path, link={"port": -1})
    monkeypatch.setenv("DURABLE_STREAM_LINK__PROT", "1")
    with pytest.raises(ConfigError, match=r"DURABLE_STREAM_LINK__PROT: unknown key link\.prot"):
        load_config(path)
    monkeypatch.delenv("DURABLE_STREAM_LINK__PROT")
    monkeypatch.setenv("DURABLE_STREAM_LINK__PORT", "x")
    with pytest.raises(ConfigError, match="DURABLE_STREAM_LINK__PORT"):
        load_config(path)
    monkeypatch.delenv("DURABLE_STREAM_LINK__PORT")
    monkeypatch.setenv("DURABLE_STREAM_LINK", "{")
    with pytest.raises(ConfigError, match="environment"):
        load_config(path)


def test_a_file_that_is_no_text_is_told(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="UTF-8"):
        load_config(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(path)
