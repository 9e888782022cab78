"""The settings of server and client, their mistakes, and what ``doctor`` says of NATS: off, embedded, external."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.nats.jetstream.client_errors import NOTHING_LISTENS, UNKNOWN_HOST
from sidecar.care.checks.check import Check, scene_of
from sidecar.care.checks.nats import _unprotected, check_nats
from sidecar.config import NatsConfig
from sidecar.home import Home
from sidecar.mirror.settings import FREE_PORT, server_config
from tests.nats_servers import OLDEST, TOKEN, VERSIONS, RealServer, program, real_server


def test_the_server_is_told_to_sync_always_to_stay_at_home_and_to_log_nothing_of_messages() -> None:
    told = json.loads(server_config(Path("/h/nats"), NatsConfig(max_store_bytes=10**9), token="a" * 64, port=FREE_PORT))
    assert (told["host"], told["port"]) == ("127.0.0.1", -1)
    assert told["authorization"]["token"] == "a" * 64
    jetstream = told["jetstream"]
    assert jetstream["sync_interval"] == "always"
    assert (jetstream["store_dir"], jetstream["max_file_store"]) == ("/h/nats/store", 10**9)
    assert told["debug"] is told["trace"] is False
    assert 0 < told["logfile_size_limit"] <= 2**20 and 0 < told["logfile_max_num"] <= 4
    assert not {"http", "http_port", "https_port", "cluster", "leafnodes", "websocket", "mqtt"} & told.keys()


@pytest.mark.parametrize("version", VERSIONS)
def test_the_server_understands_every_word_of_it(version: str, tmp_path: Path) -> None:
    directory = tmp_path / 'a "strange" \\ place #1 $HOME é'
    directory.mkdir()
    config = directory / "server.conf"
    config.write_text(server_config(directory, NatsConfig(), token="a" * 64, port=FREE_PORT))
    done = subprocess.run(
        [program(version), "-t", "-c", config], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr


EMBEDDED = f'[nats]\nmode = "embedded"\nexecutable = "{program("2.15")}"\n'
SERVER = {"state": "running", "pid": 7, "port": 4222, "version": "2.15.0", "restarts": 0, "problem": ""}
MIRROR = {"state": "idle", "position": 4, "head": 4, "lag": 0, "problem": "", "full": {}}
NOW = {"mode": "embedded", "problem": "", "server": SERVER, "mirror": MIRROR}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    with real_server(tmp_path_factory.mktemp("nats"), OLDEST) as one:
        yield one


def look(home: Home, config: str, now: dict[str, Any] | None = None) -> list[Check]:
    home.config_path.write_text(config)
    scene = scene_of(home)
    return check_nats(scene._replace(answer={"nats": now}) if now is not None else scene)


def only(found: list[Check], name: str = "nats") -> Check:
    (one,) = [check for check in found if check.name == name]
    return one


def test_off_is_one_line(home: Home) -> None:
    assert look(home, "") == [Check("nats", "ok", "off: the log is not mirrored")]
    found = look(home, "", NOW)
    assert [check.level for check in found] == ["note", "ok"] and "durable-stream stop" in found[0].hint


def test_embedded(home: Home, tmp_path: Path) -> None:
    found = only(look(home, EMBEDDED))
    assert found.level == "ok" and "nats-server 2.15" in found.text and "which is not running" in found.text
    assert "running, pid 7, port 4222" in only(look(home, EMBEDDED, NOW)).text
    assert only(look(home, EMBEDDED, NOW), "mirror").text.startswith("up to date with the log")
    behind = {**NOW, "mirror": {**MIRROR, "lag": 3, "problem": "no room; it is tried again"}}
    assert only(look(home, EMBEDDED, behind), "mirror").text == "3 records waiting: no room"
    ill = only(look(home, EMBEDDED, {**NOW, "problem": "it ended: why"}))
    assert ill.level == "note" and "it ended: why" in ill.text and str(home.nats_path) in ill.hint

    gone = look(home, f'[nats]\nmode = "embedded"\nexecutable = "{tmp_path / "none"}"\n')
    assert only(gone).level == "note" and str(tmp_path / "none") in only(gone).text and "[nats]" in only(gone).hint
    old = tmp_path / "old"
    old.write_text("#!/bin/sh\necho nats-server: v2.9.1\n")
    old.chmod(0o755)
    assert "2.9.1" in only(look(home, f'[nats]\nmode = "embedded"\nexecutable = "{old}"\n')).text


def test_a_directory_that_cannot_be_used_and_a_port_that_is_taken(home: Home) -> None:
    home.nats_path.write_text("no directory")
    found = only(look(home, EMBEDDED))
    assert found.level == "note" and "is not a directory" in found.text and "move this directory away" in found.hint
    home.nats_path.unlink()
    home.nats_path.mkdir(mode=0o700)
    assert only(look(home, EMBEDDED)).level == "ok"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = only(look(home, f"{EMBEDDED}port = {port}\n"))
        assert (found.level, found.text) == ("note", f"port {port} cannot be used: another program is using it")
        assert only(look(home, f"{EMBEDDED}port = {port}\n", NOW)).level == "ok", "it is the server's own"


def test_external(home: Home, server: RealServer, tmp_path: Path) -> None:
    def external(address: str, more: str = "") -> Check:
        return only(look(home, f'[nats]\nmode = "external"\nservers = ["{address}"]\n{more}'))

    place = f"127.0.0.1:{server.port}"
    good = external(f"nats://{TOKEN}@{place}")
    assert good.level == "ok" and place in good.text and OLDEST in good.text and TOKEN not in str(good)
    for found, text, hint in (
        (external(f"nats://wrong@{place}"), "the login", "[nats]"),
        (external("nats://127.0.0.1:1"), NOTHING_LISTENS, "[nats]"),
        (external("nats://no.such.name.invalid:4222"), UNKNOWN_HOST, "[nats]"),
        (external(f"nats://{place}", f'credentials = "{tmp_path}/a.creds"\n'), "a.creds", "[nats]"),
        (external(f"tls://{place}"), place, "TLS"),
    ):
        assert found.level == "note" and text in found.text and hint in found.hint, found


def test_an_external_one_without_jetstream_or_too_old(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with real_server(tmp_path / "plain", OLDEST, authorization={}) as plain:
        config = f'[nats]\nmode = "external"\nservers = ["nats://127.0.0.1:{plain.port}"]\n'
        monkeypatch.setattr("bridge.nats.jetstream.stream_plan.OLDEST", (2, 13))
        assert "oldest supported version is 2.13" in only(look(home, config)).text
    with real_server(tmp_path / "bare", OLDEST, authorization={}, jetstream=False) as bare:
        found = only(look(home, f'[nats]\nmode = "external"\nservers = ["nats://127.0.0.1:{bare.port}"]\n'))
        assert found.level == "note" and "JetStream" in found.hint


@pytest.mark.parametrize(
    ("about", "far"),
    [
        ({"servers": ("nats://nats.example.org:4222",)}, "nats.example.org"),
        ({"servers": ("nats://127.0.0.1:4222", "nats://10.0.0.7:4222")}, "10.0.0.7"),
        ({"servers": ("tls://nats.example.org:4222",)}, None),
        ({"servers": ("nats://localhost:4222", "nats://[::1]:4222")}, None),
    ],
)
def test_a_server_elsewhere_without_tls_is_told(about: dict[str, Any], far: str | None) -> None:
    assert _unprotected(NatsConfig(mode="external", **about)) == far
