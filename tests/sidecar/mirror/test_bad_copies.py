"""The mirror's commands on a bad store: one sentence, and nothing changes, not even on the server.

``tests/sidecar/test_bad_stores.py`` has all states, with other commands that open the log.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from bridge.nats.jetstream.client_errors import NOTHING_LISTENS
from tests.nats_servers import RealServer
from tests.sidecar.bad_stores import REFUSED, Backend, make_store, snapshot
from tests.sidecar.cli.helpers import run
from tests.sidecar.life import end_sidecars
from tests.sidecar.mirror.copies import Copy
from tests.sidecar.test_bad_stores import BROKEN, is_sentence


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[Backend, Path]:
    stores: dict[Backend, Path] = {}
    for backend in REFUSED:
        stores[backend] = tmp_path_factory.mktemp(backend) / "store"
        make_store(stores[backend], backend)
    return stores


@pytest.mark.parametrize("backend", BROKEN)
def test_it_is_refused_in_one_sentence(
    tmp_path: Path, server: RealServer, sound: dict[Backend, Path], backend: Backend
) -> None:
    state = BROKEN[backend]
    copy = Copy(tmp_path / "home", server)
    copy.configure()
    shutil.rmtree(copy.home.store_path)
    shutil.copytree(sound[backend], copy.home.store_path)
    state(copy.home.store_path)
    before, messages = snapshot(copy.home.store_path), len(copy.messages())
    for arguments in (["verify"], ["rebuild", "--yes"]):
        done = run(copy.home.path, "mirror", *arguments)
        assert is_sentence(done, REFUSED[backend][state]), (arguments, done)
    assert snapshot(copy.home.store_path) == before and len(copy.messages()) == messages


def test_a_home_that_a_sidecar_has_or_that_has_no_log(
    tmp_path: Path, server: RealServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.link.launch.START_SECONDS", 0.5)  # it waits that long for one that never answers
    copy = Copy(tmp_path / "home", server)
    copy.configure()
    for arguments in (["verify"], ["rebuild", "--yes"]):
        assert is_sentence(run(copy.home.path, "mirror", *arguments), "no log exists in .* yet", on_page=False)
    copy.make("chat")
    with copy.home.lock():
        done = run(copy.home.path, "mirror", "rebuild", "--yes")
        assert is_sentence(done, r"another sidecar.* serving this home.*`durable-stream stop`"), done
    assert run(copy.home.path, "mirror", "status").code == 0
    end_sidecars(copy.home)  # the one that waited for the home has it now


@pytest.mark.parametrize("command", [["mirror", "verify"], ["mirror", "rebuild"]])
def test_where_there_is_no_server_it_is_said_what_to_do(tmp_path: Path, server: RealServer, command: list[str]) -> None:
    copy = Copy(tmp_path / "home", server).make("chat")
    for config, wanted in (
        ("", r"NATS is off in .*; set `mode` to "),
        (
            '[nats]\nmode = "embedded"\n',
            r"runs with the sidecar, which is not running; start a sidecar with `durable-stream serve`",
        ),
        (
            '[nats]\nmode = "external"\nservers = ["nats://ada:geheim@127.0.0.1:1"]\n',
            rf"127\.0\.0\.1:1: {NOTHING_LISTENS}",
        ),
        (f'[nats]\nmode = "external"\nservers = ["nats://127.0.0.1:{server.port}"]\n', "nats-login-refused"),
    ):
        copy.home.config_path.write_text(config)
        done = run(copy.home.path, *command)
        assert is_sentence(done, wanted, on_page=False) and "geheim" not in done.err, done
    done = run(copy.home.path, "listen")
    assert is_sentence(done, "nats-login-refused", on_page=False), "which no waiting changes"
    assert re.search(r"^nats +off; set mode", run(copy.home.path, "mirror", "status").out) is None
    copy.home.config_path.write_text("")
    assert re.search(r"^nats +off; set `mode`", run(copy.home.path, "mirror", "status").out)
