"""Which registrations of an OpenCode 2 service are believed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from sidecar.record.opencode2.registration import UnsafeService, check_listener, read_registration, registration_paths
from sidecar.record.opencode2.services import began_ms
from streams.identity import seeded_identity

GOOD = {"id": "i-1", "version": "2.0.0", "url": "http://127.0.0.1:4096", "pid": os.getpid(), "password": "secret-pw"}


def write(path: Path, mode: int = 0o600, **changes: Any) -> Path:
    path.write_text(json.dumps({**GOOD, **changes}))
    path.chmod(mode)
    return path


def test_registrations_lie_where_the_plugin_says_that_they_do(tmp_path: Path) -> None:
    for state in (tmp_path / "x", tmp_path / ".local" / "state"):
        (state / "opencode").mkdir(parents=True)
        for name in ("service.json", "service-dev.json", "other.json"):
            (state / "opencode" / name).touch()
        environ = {"HOME": str(tmp_path)} | ({"XDG_STATE_HOME": str(state)} if state.name == "x" else {})
        names = [state / "opencode" / name for name in ("service-dev.json", "service.json")]
        assert registration_paths(environ) == names
    assert registration_paths({"HOME": "/nowhere"}) == []


def test_a_private_registration_on_loopback_is_believed(tmp_path: Path) -> None:
    found = read_registration(write(tmp_path / "service.json"))
    assert found is not None
    assert (found.id, found.host, found.port, found.password) == ("i-1", "127.0.0.1", 4096, "secret-pw")
    assert "secret-pw" not in repr(found)


@pytest.mark.parametrize("url", ["http://localhost:1", "http://[::1]:1", "http://127.0.0.9:1"])
def test_every_loopback_address_is_one(tmp_path: Path, url: str) -> None:
    assert read_registration(write(tmp_path / "service.json", url=url)) is not None


@pytest.mark.parametrize(
    "url",
    ["http://0.0.0.0:1", "http://10.0.0.1:1", "https://127.0.0.1:1", "http://localhost.example:1", "http://127.0.0.1"],
)
def test_no_password_leaves_the_machine(tmp_path: Path, url: str) -> None:
    with pytest.raises(UnsafeService):
        read_registration(write(tmp_path / "service.json", url=url))


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620])
def test_a_file_that_others_may_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(UnsafeService):
        read_registration(write(tmp_path / "service.json", mode))


def test_a_link_and_a_directory_are_refused(tmp_path: Path) -> None:
    real = write(tmp_path / "real.json")
    (tmp_path / "link.json").symlink_to(real)
    (tmp_path / "directory.json").mkdir()
    for name in ("link.json", "directory.json"):
        with pytest.raises(UnsafeService):
            read_registration(tmp_path / name)


@pytest.mark.parametrize(
    "changes", [{"pid": 2**22 + 7}, {"pid": 0}, {"pid": "1"}, {"id": None}, {"password": 5}, {"id": "a\nb"}]
)
def test_a_dead_or_odd_service_is_none(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert read_registration(write(tmp_path / "service.json", **changes)) is None


def test_no_file_and_half_a_file_are_none(tmp_path: Path) -> None:
    assert read_registration(tmp_path / "service.json") is None
    half = write(tmp_path / "half.json")
    half.write_text('{"id": "i-')
    assert read_registration(half) is None


def test_a_port_of_another_user_is_refused(tmp_path: Path) -> None:
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    line = "   0: 0100007F:1000 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 {uid} 0 1\n"
    table = tmp_path / "tcp"
    for state, uid, safe in (("0A", os.geteuid(), True), ("0A", 54321, False), ("01", 54321, True)):
        table.write_text(head + line.format(state=state, uid=uid))
        if safe:
            check_listener(0x1000, (table,))
        else:
            with pytest.raises(UnsafeService):
                check_listener(0x1000, (table,))
    check_listener(0x1000, (tmp_path / "missing",))


def test_when_a_log_began_is_in_its_id() -> None:
    assert began_ms(seeded_identity(1, start_ms=1_700_000_000_000).ulid()) == 1_700_000_000_000
    assert began_ms("not a ulid") == began_ms("") == 0
