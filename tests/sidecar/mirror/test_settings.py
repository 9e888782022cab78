"""The settings of server and client that a configuration gives, and the configuration's own mistakes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from bridge.nats.jetstream.options import PullSettings
from sidecar.config import ConfigError, NatsConfig, load_config
from sidecar.mirror.settings import FREE_PORT, pull_settings, server_config
from tests.nats_servers import VERSIONS, program


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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('mode = "external"', 'mode "external" needs `servers`'),
        ('mode = "outside"', "nats.mode"),
        ('servers = "nats://h"', "must be a list"),
        ('servers = ["h:4222"]', "must be like nats://host:4222"),
        ('servers = ["http://h:4222"]', "must be like nats://host:4222"),
        ('servers = ["tls://ada:geheim@h:99999"]', "must be like nats://host:4222"),
        ('cert_dir = "/c"', "`cert_dir` is set but has no effect without TLS"),
        ('tls_hostname = "h"\nservers = ["nats://h"]', "`tls_hostname` is set but has no effect without TLS"),
        ('credentials = "ada.creds"', "must be absolute"),
        ('inbox_prefix = "a.>"', "nats.inbox_prefix"),
        ("port = 70000", "nats.port"),
        ("[nats.pull]\nbatch_size = 0", "nats.pull.batch_size"),
        ("prot = 1", "unknown key nats.prot (did you mean nats.port?)"),
    ],
)
def test_a_mistake_is_told_without_a_secret(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text if text.startswith("[") else f"[nats]\n{text}\n")
    with pytest.raises(ConfigError) as told:
        load_config(path)
    assert said in str(told.value) and "geheim" not in str(told.value)


def test_pull_is_read_and_other_keys_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.toml"
    path.write_text("[nats.pull]\nbatch_size = 3\nack_wait_seconds = 7\nnew_option = [1]\n")
    monkeypatch.setenv("DURABLE_STREAM_NATS__PULL__MAX_INFLIGHT", "5")
    config = load_config(path).nats
    assert config.pull.model_extra == {"new_option": [1]}
    found = pull_settings(config)
    assert (found.batch_size, found.max_inflight, found.ack_wait_s) == (3, 5, 7.0)
    assert pull_settings(NatsConfig()) == PullSettings()
