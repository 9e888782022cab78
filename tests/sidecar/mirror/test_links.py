"""Links in the embedded server's directory: nothing behind one is opened, changed or deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.config import NatsConfig
from sidecar.mirror.server.process import ServerProcess, StartFailed, clear_orphan
from sidecar.mirror.settings import FREE_PORT, server_config
from tests.nats_servers import program


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "nats"
    path.mkdir(mode=0o700)
    return path


@pytest.mark.parametrize("name", ["ports", "server.log", "store", "store/jetstream", "store/jetstream/$G/x"])
async def test_a_server_does_not_start_through_a_link(directory: Path, tmp_path: Path, name: str) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    letter = theirs / "letter.txt"
    letter.write_text("mine")
    link = directory / name
    link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    link.symlink_to(letter if name == "server.log" else theirs)
    config = server_config(directory, NatsConfig(mode="embedded"), token="7e" * 32, port=FREE_PORT)

    with pytest.raises(StartFailed) as refused:
        await (await ServerProcess.start(program("2.15"), directory, config)).end(5)

    assert str(link) in str(refused.value)
    assert [path.name for path in theirs.iterdir()] == ["letter.txt"] and letter.read_text() == "mine"


def test_the_note_about_an_orphan_is_not_read_through_a_link(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = tmp_path / "note.json"
    note.write_text('{"pid": 4194305}')
    (directory / "server.json").symlink_to(note)
    judged: list[int] = []
    monkeypatch.setattr("sidecar.mirror.server.process._is_ours", lambda pid, directory: bool(judged.append(pid)))

    assert clear_orphan(directory, 1) is None

    assert judged == [] and note.exists()
