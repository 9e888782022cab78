"""``sidecar.log``: bounded, private, rotated by one process only, and without any user content."""

from __future__ import annotations

import json
import logging
import os
import stat
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from bridge.opencode.link.frames import HookItem, ShimIdentity
from bridge.opencode.link.protocol import proof
from sidecar.care import logs
from sidecar.care.logs import log_to, note_failure
from sidecar.home import Home
from sidecar.link.client import LinkClosed, ShimClient
from streams.identity import system_identity
from tests.sidecar.cli.helpers import append, run, run_process
from tests.sidecar.life import COMMAND, end_sidecars, logged, recorded, shims, start_as
from tests.sidecar.support import running, spool_line, wait_for
from tests.streams.builders import event
from tests.streams.unmoved import nothing_moves

MARK = "sk-live-the-users-own-words"


def files(home: Home) -> list[str]:
    return sorted(path.name for path in home.path.glob("sidecar.log*"))


class TestRotation:
    def test_it_is_bounded_in_size_and_number_and_closed_to_others(
        self, home: Home, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(logs, "MAX_BYTES", 4096)
        monkeypatch.setattr(logs, "OLDER_FILES", 3)
        previous = os.umask(0)
        try:
            with ExitStack() as stack:
                log_to(home, stack)
                for n in range(1000):
                    logging.getLogger("sidecar.link").warning("line %d of many", n)
        finally:
            os.umask(previous)
        assert files(home) == ["sidecar.log", "sidecar.log.1", "sidecar.log.2", "sidecar.log.3"]
        for path in home.path.glob("sidecar.log*"):
            assert path.stat().st_size <= 4096 and stat.S_IMODE(path.stat().st_mode) == 0o600
        lines = [int(line.split()[-3]) for line in logged(home).splitlines()]
        assert lines == list(range(lines[0], 1000)), "what is kept is the newest, and whole"

    def test_one_that_cannot_start_appends_and_never_rotates(self, home: Home) -> None:
        home.config_path.write_text("[link]\nport = 'many'\n")
        home.log_path.write_text("x" * (2 * 1024 * 1024) + "\n")
        assert [run(home.path, "serve", "--idle-exit").code for _ in range(2)] == [1, 1]
        assert files(home) == ["sidecar.log"] and logged(home).count("could not serve") == 2

    def test_a_link_in_its_place_is_not_written_through(self, home: Home) -> None:
        outside = home.path.parent / "outside"
        outside.write_text("")
        home.log_path.symlink_to(outside)
        note_failure(home, OSError("x"))
        with ExitStack() as stack, pytest.raises(OSError, match="symbolic links"):
            log_to(home, stack)
        assert outside.read_text() == ""


class TestNoPayloads:
    async def test_no_word_of_the_users_is_in_it_whatever_goes_wrong(self, home: Home) -> None:
        start_as(COMMAND, home, "--idle-exit")
        info = running(home)
        with shims(1, home.path) as (shim,):
            shim.ask("events", **{"from": 1}, count=20, text=MARK)
            shim.until("acked", 20)
        token = home.read_token()
        for garbage in (MARK, json.dumps({"type": MARK}), json.dumps([MARK]), f'{{"type":"hello","role":"{MARK}"}}'):
            _say(info.port, garbage)
            _say(info.port, garbage, token=token)
        for frame in _broken_frames():
            _say(info.port, json.dumps(frame), token=token)
        await _break_the_window(home)
        # A spool with damaged lines, whose process is gone.
        spool = home.spool_path / f"{'d' * 32}-{'e' * 16}.jsonl"
        line = spool_line(1, {"hook": "event", "t": 1, "input": {"event": {"type": MARK}}})
        spool.write_text(f"{MARK}\n{line}\n{{{MARK}\n")
        with shims(1, home.path) as (shim,):
            shim.until("welcomes", 1)
        wait_for(lambda: not spool.exists(), "the spool is taken in")
        assert sum((await recorded(home)).values()) == 20, "it went through all the same"
        # The log cannot be read any more.
        end_sidecars(home)
        with nothing_moves():
            await append(home.store_path, [[event("last", payload={"text": MARK})]])
        segment = max((home.store_path / "journal").iterdir())
        segment.write_bytes(segment.read_bytes().replace(MARK.encode(), MARK.upper().encode()))
        assert run_process(home.path, "serve", "--idle-exit").code == 1
        text = logged(home)
        assert "could not serve" in text and "link closed" in text
        for told in (MARK, MARK.upper(), "life.tick", token, "/home/ada/dir"):
            assert told not in text, told


def _broken_frames() -> list[dict[str, Any]]:
    item = {"hook": "event", "t": 1, "input": MARK, "output": MARK}
    return [
        {"type": "hooks", "first_seq": MARK, "items": [item]},
        {"type": "hooks", "first_seq": 1, "items": MARK},
        {"type": "hooks", "first_seq": 1, "items": [item | {"t": MARK}]},
        {"type": "hooks", "first_seq": 1, "items": [item | {"hook": MARK * 20}]},
        {"type": "hooks", "first_seq": 5, "items": [item, item | {"input": {"event": {"type": "session.created"}}}]},
        {"type": "lossy", "items": [item]},
        {"type": "tool", "id": "t1", "name": MARK, "args": {"x": MARK}, "context": {}},
        {"type": "result", "id": "c9", "error": {"code": MARK, "message": MARK}},
        {"type": "bye", "reason": MARK},
        {"type": "request", "id": MARK, "method": MARK, "args": {}},
        {"type": MARK},
        {"type": "hooks", "first_seq": 1, "items": [item | {"input": {"event": _session_of(MARK)}}]},
    ]


def _session_of(version: str) -> dict[str, Any]:
    return {"type": "session.created", "properties": {"info": {"id": "ses_m", "version": version}}}


def _say(port: int, text: str, *, token: str = "") -> None:
    """Send one message from a peer, authenticated if it has the token; return when the sidecar has handled it."""
    with connect(f"ws://127.0.0.1:{port}/", compression=None) as socket:
        if token:
            nonce = system_identity().nonce()
            socket.send(json.dumps({"type": "hello", "role": "shim", "protocol": 1, "nonce": nonce}))
            challenge = json.loads(socket.recv())
            right = proof(token, "shim", port, nonce, challenge["nonce"])
            who = {"shim_version": MARK, "boot_id": "ab" * 16, "instance": "cd" * 8, "last_seq": 0, "directory": MARK}
            who["opencode_version"] = MARK if "bye" in text else ""
            socket.send(json.dumps({"type": "identify", "proof": right, "pid": 7, **who}))
            assert json.loads(socket.recv())["type"] == "welcome"
        # The sidecar closes on garbage, at times before the second message is sent.
        with suppress(ConnectionClosed):
            socket.send(text)
            socket.send(json.dumps({"type": "bye", "reason": "disposed"}))
            for _ in socket:
                continue


async def _break_the_window(home: Home) -> None:
    who = ShimIdentity("0.1.0", "ab" * 16, "ef" * 8, 7, MARK, MARK, MARK, "", 0)
    client = await ShimClient.connect(home, identity=who, nonce=system_identity().nonce)
    item = HookItem("event", 1, {"event": {"type": "opencode.new", "properties": {"text": MARK}}})
    await client.send([item] * 5)
    await client.drained()
    client._link.last_sent = 0
    client._link.send_hooks(9, [item])
    client._link.last_sent = 0
    client._link.send_hooks(7, [item])
    await client._flush()
    with pytest.raises(LinkClosed, match="protocol"):
        await client.drained()
    await client.close()
