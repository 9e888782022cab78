"""Files: private regardless of the umask, and never reached through a planted link."""

import asyncio
import logging
import os
import shutil
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from bridge.opencode.capture.translate import Translator
from sidecar.app import serve
from sidecar.care.logs import OneLine, RotatedLog
from sidecar.config import Config
from sidecar.home import Home, SidecarInfo
from sidecar.private_files import HomeError
from sidecar.record.ingest import Ingest
from sidecar.record.spools import take_left
from streams.errors import StreamError
from streams.identity import seeded_identity
from streams.log.log import Log
from tests.memory import MemoryStore
from tests.sidecar.support import spool_line
from tests.streams.builders import event
from tests.streams.unmoved import nothing_moves

TOKEN = "7e" * 32
INFO = SidecarInfo(pid=os.getpid(), port=4000, boot="b", version="0.1", protocol=1, started_ms=5)
HANG_SECONDS = 120.0


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture(params=[0o000, 0o077, 0o777])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_everything_is_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    home = Home(tmp_path / "home")
    home.create()
    home.create()
    home.ensure_token(lambda: TOKEN)
    home.write_info(INFO)
    with home.lock():
        for path in (home.path, home.store_path, home.spool_path):
            assert mode(path) == 0o700, path
        for path in (home.token_path, home.info_path, home.lock_path):
            assert mode(path) == 0o600, path
    names = {path.name for path in home.path.iterdir()}
    assert names == {"token", "sidecar.json", "sidecar.lock", "store", "spool"}


def test_an_empty_or_former_home_is_closed_a_foreign_directory_is_not_touched(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    empty.chmod(0o755)
    Home(empty).create()
    assert mode(empty) == 0o700
    empty.chmod(0o755)
    Home(empty).ensure_token(lambda: TOKEN)
    Home(empty).create()
    assert mode(empty) == 0o700

    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "letters.txt").touch()
    for as_it_is in (0o755, 0o700):
        foreign.chmod(as_it_is)
        with pytest.raises(HomeError, match="it contains other files and is not a Durable Stream home"):
            Home(foreign).create()
        assert mode(foreign) == as_it_is and [path.name for path in foreign.iterdir()] == ["letters.txt"]
    foreign.chmod(0o755)
    (foreign / "store").mkdir()
    (foreign / "store" / "store.json").write_text("{}")
    Home(foreign).create()
    assert mode(foreign) == 0o700, "a store that was brought back from a backup makes it a home"


@pytest.mark.parametrize("bits", [0o604, 0o640, 0o620, 0o601])
def test_a_token_open_to_others_is_refused(home: Home, bits: int) -> None:
    home.ensure_token(lambda: TOKEN)
    home.token_path.chmod(bits)
    with pytest.raises(HomeError, match="accessible to other users"):
        home.read_token()


@pytest.mark.parametrize("kind", ["directory", "pipe", "socket"])
def test_a_token_that_is_no_file_is_refused_and_does_not_hang(
    home: Home, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "directory":
        home.token_path.mkdir(0o700)
    elif kind == "pipe":
        os.mkfifo(home.token_path, 0o600)
    else:
        monkeypatch.chdir(home.path)  # a socket's path must be short
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("token")
    with pytest.raises(HomeError):
        home.read_token()


def test_another_users_token_is_refused(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.ensure_token(lambda: TOKEN)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(HomeError, match="not by you"):
        home.read_token()


@pytest.mark.parametrize("text", ["", "short", TOKEN + TOKEN, TOKEN.upper(), "é" * 64])
def test_a_broken_token_is_refused_and_never_printed(home: Home, text: str) -> None:
    home.token_path.write_text(text)
    home.token_path.chmod(0o600)
    with pytest.raises(HomeError) as broken:
        home.read_token()
    assert not text or text not in str(broken.value)


@pytest.mark.parametrize("bits", [0o604, 0o640, 0o666])
def test_a_sidecar_json_open_to_others_is_not_believed(home: Home, bits: int) -> None:
    home.write_info(INFO)
    assert home.read_info() == INFO
    home.info_path.chmod(bits)
    assert home.read_info() is None


# --- all of a home that was in use ---


async def in_use(home: Home, upset: Callable[[], None] = lambda: None) -> None:
    """Serve the home in this process until it is ready, then do ``upset`` and stop."""
    ready = asyncio.Event()
    serving = asyncio.create_task(serve(home, Config(), announce=lambda port: ready.set()))
    waiting = asyncio.create_task(ready.wait())
    try:
        async with asyncio.timeout(HANG_SECONDS):
            await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                upset()
    finally:
        waiting.cancel()
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving


async def filled(home: Home) -> None:
    """A home as left by a run, with a segment in its log."""
    await in_use(home)
    with nothing_moves():
        store = await Log.open(home.store_path, seeded_identity(1))
        await store.append([event("a")])
        await store.close()


async def test_a_home_in_use_is_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    home = Home(tmp_path / "home")
    await filled(home)

    def judge() -> None:
        wrong = [p for p in [home.path, *home.path.rglob("*")] if mode(p) != (0o700 if p.is_dir() else 0o600)]
        assert wrong == []
        assert {p.name for p in home.path.iterdir()} >= {"token", "sidecar.json", "sidecar.lock", "sidecar.log"}

    await in_use(home, judge)


SWAPPED = [
    "token",
    "sidecar.lock",
    "sidecar.log",
    "store",
    "store/head",
    "store/lock",
    "store/store.json",
    "store/log.db",
    "store/journal",
    "store/journal/00000000000000000000.jsonl",
    "spool",
]


@pytest.mark.parametrize("name", SWAPPED)
@pytest.mark.parametrize("dangling", [False, True])
async def test_a_swapped_link_is_refused_and_what_it_leads_to_is_not_touched(
    home: Home, tmp_path: Path, name: str, dangling: bool
) -> None:
    await filled(home)
    elsewhere, path = tmp_path / "elsewhere", home.path / name
    if dangling:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    else:
        path.rename(elsewhere)
    path.symlink_to(elsewhere)
    before = contents(elsewhere)
    with pytest.raises((HomeError, StreamError, OSError)):
        await in_use(home, lambda: pytest.fail("it served"))
    assert contents(elsewhere) == before and path.is_symlink()


def contents(path: Path) -> dict[str, bytes]:
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    return {str(file): file.read_bytes() for file in files}


async def test_a_linked_sidecar_json_is_replaced_and_what_it_leads_to_is_not_touched(
    home: Home, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("precious")
    home.info_path.symlink_to(elsewhere)
    assert home.read_info() is None
    await in_use(home, lambda: home.info_path.is_symlink() and pytest.fail("still a link"))
    assert elsewhere.read_text() == "precious"


async def test_drafts_are_not_written_through_planted_links(home: Home, tmp_path: Path) -> None:
    """Guessing the name of a file that is about to be written gains nothing."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("precious")
    for name in (f"token.{os.getpid()}", f"sidecar.json.{os.getpid()}"):
        (home.path / name).symlink_to(elsewhere)
    home.ensure_token(lambda: TOKEN)
    home.write_info(INFO)
    assert (home.read_token(), home.read_info()) == (TOKEN, INFO)
    (home.store_path / "store.json.new").symlink_to(elsewhere)
    with pytest.raises((StreamError, OSError)):
        await Log.open(home.store_path, seeded_identity(1))
    assert elsewhere.read_text() == "precious"


@pytest.mark.parametrize("planted", ["link", "pipe", "directory"])
async def test_a_planted_spool_is_not_read_and_not_deleted(home: Home, tmp_path: Path, planted: str) -> None:
    path = home.spool_path / f"{'ab' * 16}-{'cd' * 8}.jsonl"
    outside = tmp_path / "outside"
    outside.write_text(f"{spool_line(1, {'hook': 'event', 't': 1, 'input': {}, 'output': None})}\n" * 2)
    {"link": lambda: path.symlink_to(outside), "pipe": lambda: os.mkfifo(path), "directory": path.mkdir}[planted]()
    store = MemoryStore()
    ingest = Ingest(store, Translator(seeded_identity(2)), seeded_identity(2).now_ms)
    async with asyncio.timeout(HANG_SECONDS):
        assert await take_left(home.spool_path, ingest) == 0
    await ingest.close()
    assert store.head == -1 and os.path.lexists(path) and outside.exists()


# --- the sidecar's own log ---


def test_the_own_log_stays_private_when_it_is_rotated(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "sidecar.log"
    handler = RotatedLog(path, maxBytes=1024 * 1024, backupCount=2)
    for _ in range(4):
        handler.emit(logging.makeLogRecord({"msg": "x" * 700_000}))
    handler.close()
    assert {p.name: mode(p) for p in tmp_path.iterdir()} == dict.fromkeys(
        ("sidecar.log", "sidecar.log.1", "sidecar.log.2"), 0o600
    )


def test_the_own_log_is_not_rotated_through_a_link(tmp_path: Path) -> None:
    path, elsewhere = tmp_path / "sidecar.log", tmp_path / "elsewhere"
    elsewhere.write_text("precious")
    path.symlink_to(elsewhere)
    with pytest.raises(OSError):
        RotatedLog(path, maxBytes=1024 * 1024, backupCount=2)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(OSError):
        RotatedLog(path, maxBytes=1024 * 1024, backupCount=2)  # and it does not hang
    assert elsewhere.read_text() == "precious"


def test_a_message_cannot_forge_a_line_of_the_own_log(tmp_path: Path) -> None:
    handler = RotatedLog(tmp_path / "sidecar.log")
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.emit(
        logging.makeLogRecord({"msg": "version 1\n2026-01-01 00:00:00 INFO sidecar: stopped\x1b[2J\x9b\ud800"})
    )
    handler.close()
    text = (tmp_path / "sidecar.log").read_text()
    assert text.count("\n") == 1 and text.strip().isprintable() and "\\n2026" in text
