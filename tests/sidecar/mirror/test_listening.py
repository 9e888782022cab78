"""``listen``, and the mirror's commands while a sidecar runs its embedded server."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from bridge.nats import headers as h
from bridge.nats.jetstream.connection import JetStream
from bridge.nats.jetstream.stream_plan import EVENTS
from sidecar.care.checks.asking import ask_sidecar
from sidecar.cli.printing.received_message import as_json, expanded, is_internal, shown_message
from sidecar.config import load_config
from sidecar.home import Home
from sidecar.mirror.reaching import sessions_of
from streams.bus.subjects import SubjectError
from streams.identity import seeded_identity
from tests.bridge.nats.records import mirror_all, recorded
from tests.nats_servers import HANG_SECONDS, servers_of
from tests.sidecar.cli.helpers import RECORDINGS, command, environment, run
from tests.sidecar.cli.test_live import Process
from tests.sidecar.support import running, start, wait_for

EVIL = "\x1b[2J\x1b]0;title\x07 \u202eright\r\n\x9b2J 修复 👩‍💻 " * 30


@pytest.fixture(scope="module")
def mirrored_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A sidecar with an embedded server and a recorded session, shared by the tests."""
    home = Home(tmp_path_factory.mktemp("listening") / "home")
    home.path.mkdir(mode=0o700)
    home.config_path.write_text('[nats]\nmode = "embedded"\n')
    process = start(home)
    try:
        running(home)
        assert run(home.path, "play", str(RECORDINGS / "chat.jsonl"), "--speed", "max").code == 0
        level(home)
        yield home
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(HANG_SECONDS)
    assert servers_of(home.nats_path) == []


def status(home: Home) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(home.path, "mirror", "status", "--json").out)
    return found


def level(home: Home) -> dict[str, Any]:
    """Wait until all is mirrored."""

    def look() -> dict[str, Any] | None:
        found = status(home)
        return found if found["state"] == "idle" and not found["lag"] and found["head"] >= 0 else None

    found: dict[str, Any] = wait_for(look, "all is mirrored")
    return found


def with_server(home: Home, *sent: tuple[str, dict[str, str], bytes], delete: int = 0) -> None:
    """Send messages to the home's server, as any process of the user may, or delete one from the stream."""

    async def work() -> None:
        sessions = sessions_of(home, load_config(home.config_path).nats, seeded_identity(1).nonce)
        try:
            session: JetStream = await sessions.get()
            for subject, headers, body in sent:
                await session.send(subject, body, headers)
            await session.flush()
            if delete:
                await session.api(f"STREAM.MSG.DELETE.{EVENTS}", {"seq": delete})
        finally:
            await sessions.close()

    asyncio.run(work())


def test_the_mirrors_commands_ask_the_sidecar(mirrored_home: Home) -> None:
    found = level(mirrored_home)
    assert found["problem"] == "" and found["position"] == found["head"] >= 5
    assert re.search(
        r"^nats +embedded server .* running, port \d+.*\nmirror +the whole log, up to position \d+$",
        run(mirrored_home.path, "mirror", "status").out,
        re.M,
    )
    done = run(mirrored_home.path, "mirror", "verify")
    assert done.code == 0 and re.match(r"the copy equals the log: \d+ messages of \d+ records compared$", done.out)
    with_server(mirrored_home, delete=3)
    done = run(mirrored_home.path, "mirror", "verify")
    assert done.code == 1 and "missing: MESHFORGE_EVENTS: record 2:" in done.out and "rebuild" in done.out
    done = run(mirrored_home.path, "mirror", "rebuild")
    assert done.code == 0 and "would remove" in done.out and "--yes" in done.err
    assert run(mirrored_home.path, "mirror", "verify").code == 1
    done = run(mirrored_home.path, "mirror", "rebuild", "--yes", "--json")
    assert done.code == 0 and done.objects()[0]["done"]["phase"] == "done", done
    assert run(mirrored_home.path, "mirror", "verify").code == 0
    assert level(mirrored_home)["rebuild"] >= 1


def listening(home: Home, *arguments: str) -> Process:
    process = Process(home.path, "listen", *arguments)
    assert process.err.get(timeout=HANG_SECONDS).startswith("Listening to ")
    return process


def test_what_is_recorded_is_heard_and_ctrl_c_is_a_quiet_end(mirrored_home: Home) -> None:
    every, steps = listening(mirrored_home, "--json"), listening(mirrored_home, "evt.agent.*.step")
    try:
        assert run(mirrored_home.path, "play", str(RECORDINGS / "tool_chain.jsonl"), "--speed", "max").code == 0
        first = every.record()
        assert first["payload"]["type"] == "lifecycle.session.created" and first["headers"]["DS-Form"] == "whole"
        assert first["subject"].startswith("evt.") and set(first) == {"time", "subject", "headers", "payload"}
        time, subject, type_, _, text = steps.out.get(timeout=HANG_SECONDS).rstrip("\n").split("\t")
        assert time.endswith("Z") and subject.startswith("cg.v1.") and type_ == "agent.step"
        assert text == "bash: completed"
        assert every.interrupt() == 0 and steps.interrupt() == 0
        assert steps.err.empty()
    finally:
        every.end()
        steps.end()


def test_it_hears_on_when_the_server_was_killed(mirrored_home: Home) -> None:
    process = listening(mirrored_home, "evt.>", "--json")
    try:
        pid = asyncio.run(ask_sidecar(mirrored_home, "status", seeded_identity(1).nonce))["nats"]["server"]["pid"]
        os.kill(pid, signal.SIGKILL)
        assert "Waiting for the server" in process.err.get(timeout=HANG_SECONDS)
        lines = [process.err.get(timeout=HANG_SECONDS)]
        while not lines[-1].startswith("Reconnected"):
            lines.append(process.err.get(timeout=HANG_SECONDS))
        with_server(mirrored_home, ("evt.p.l.s.note", {}, b"heard"))
        assert process.record()["text"] == "heard"
        assert process.interrupt() == 0
    finally:
        process.end()
    level(mirrored_home)


def test_nothing_drives_a_terminal_and_lines_fit(mirrored_home: Home) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 80, 0, 0))
    process = subprocess.Popen(
        command(mirrored_home.path, "listen", ">"),
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.PIPE,
        env=environment(TERM="xterm"),
    )
    os.close(theirs)
    assert process.stderr is not None and process.stderr.readline().startswith(b"Listening")
    (whole, *_) = [m.messages[-1] for m in mirror_all(recorded("chat")) if b"human.input" in m.messages[-1].body]
    evil = whole.body.replace(b'"text":"', b'"text":' + json.dumps(EVIL).encode()[:-1], 1)
    chunk = json.dumps({"agent_turn_id": "t", "step_id": "s", "chunk_type": "text", "content": EVIL}).encode()
    with_server(
        mirrored_home,
        (whole.subject, whole.headers, evil),
        ("cg.v1.p.public.str.agent.ses_1.chunk", {}, chunk),
        ("dlq.x", {"CG-Sender": "%1B[31mred", "CG-Timestamp": "9" * 400}, EVIL.encode()),
        ("evt.p.l.s.t", {"DS-Form": "whole"}, b"\xff\x00 not json"),
        ("cmd.end", {}, b"END"),
    )
    said = b""
    while b"END" not in said:
        assert select.select([ours], [], [], HANG_SECONDS)[0], said
        said += os.read(ours, 65536)
    process.send_signal(signal.SIGINT)
    assert process.wait(HANG_SECONDS) == 0
    process.stderr.close()
    os.close(ours)
    assert b"\x1b[" in said, "colour on a terminal"
    bare = re.sub(r"\x1b\[[0-9;]*m", "", said.decode().replace("\r\n", "\n"))
    assert [c for c in bare if not c.isprintable() and c not in "\n\u200d"] == []
    lines = [line for line in bare.splitlines() if line and not line.startswith("^C")]
    assert max(map(cell_len, lines)) <= 80, lines
    told = [line for line in lines if re.match(r"\d\d:\d\d:\d\d ", line)]
    assert len(told) == 5 and " input " in told[0] and "ses_1" in told[1] and "修复" in bare


def test_a_server_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.path.mkdir(mode=0o700)
    home.config_path.write_text('[nats]\nmode = "embedded"\n')
    process = Process(home.path, "listen", "--json")
    sidecar: subprocess.Popen[bytes] | None = None
    try:
        said = process.err.get(timeout=HANG_SECONDS)
        assert "no sidecar is running" in said and "Waiting for the server" in said and said.count("\n") == 1
        sidecar = start(home)
        running(home)
        while not said.startswith("Listening to "):
            said = process.err.get(timeout=HANG_SECONDS)
        with_server(home, ("evt.p.l.s.note", {}, b"heard"))
        assert process.record()["text"] == "heard"
        assert process.interrupt() == 0
    finally:
        process.end()
        if sidecar is not None:
            sidecar.send_signal(signal.SIGTERM)
            sidecar.wait(HANG_SECONDS)


# What is shown, without a server


def test_short_forms_and_what_is_no_pattern(tmp_path: Path) -> None:
    for given in ("evt.>", ">", "evt.*.*.ses_1.>", "cmd.p.w.a.>", "cg.v1.>", "dlq.>"):
        assert expanded(given) == given
    for given in ("evt.agent.*.step", "cmd.sys.>", "str.>"):
        assert expanded(given) == f"cg.*.*.*.{given}"
    for given in ("", "a b", "evt..x", "evt.>.x", "evt.\x1b[2J", "x" * 5000):
        with pytest.raises(SubjectError):
            expanded(given)
        done = run(tmp_path, "listen", given)
        assert done.code == 2 and "\x1b" not in done.err


def test_what_is_of_the_l0_protocol_reads_like_the_log() -> None:
    lines = [
        str(shown_message(message.subject, message.headers, message.body, 5).line)
        for made in mirror_all(recorded("task_nested"))
        for message in made.messages[:-1]
    ]
    assert any(re.match(r"state: running · turn 1", line) for line in lines)
    assert any(re.match(r"task: success · \d steps? · 1?\d+ in, \d+ out", line) for line in lines), lines
    assert any(re.match(r"task: completed.* · child \w{10}$", line) for line in lines), lines
    assert any(re.match(r"model: stop · ", line) for line in lines)
    assert not [line for line in lines if "{" in line or "=" in line]
    step = "cg.v1.p.public.evt.agent.ses_1.step"
    failed = shown_message(
        step, {}, b'{"phase": "failed", "metadata": {"tool": "bash", "timing": {"duration_ms": 2500}}}', 5
    )
    assert (str(failed.line), failed.line.tone) == ("bash: failed · 2.5s", "bad")
    for strange in (b"{}", b"[]", b'{"metadata": 3, "phase": {"a": 1}}', b'{"stats": [1], "turn_epoch": "x"}', b"1"):
        for suffix in ("step", "state", "task", "chunk"):
            assert shown_message(step.replace("step", suffix), {}, strange, 5).line.label


def test_foreign_messages_are_shown_as_they_are() -> None:
    assert as_json("a", {}, b"\xff", 0)["base64"] == "/w==" and as_json("a", {}, b"x", 0)["text"] == "x"
    told = shown_message("cg.v1.broken", {h.TIMESTAMP: "-1", h.FORM: "whole"}, b'{"id": 1}', 7)
    assert (told.ts, told.line.text) == (7, "id=1")
    assert shown_message("a.b", {}, b"[" * 100_000, 7).line.text.startswith("[[[")
    assert is_internal("$JS.API.INFO", ">") and is_internal("_INBOX.x", "*.x") and not is_internal("evt.x", ">")
    assert not is_internal("$JS.API.INFO", "$JS.>")
