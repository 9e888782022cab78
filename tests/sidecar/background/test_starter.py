"""A headless OpenCode that the sidecar or a command starts. A script takes its place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.background.hosts import starter
from sidecar.background.hosts.host import HostError
from sidecar.background.hosts.starter import Started, find_program, own_keys

SERVER = """#!{python}
import http.server, json, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        with open("{told}", "a") as file:
            print(json.dumps([self.path, self.headers.get("x-opencode-directory"), os.getcwd(), dict(os.environ)]),
                  file=file)
        self.send_response(200 if self.path == "/global/health" else {status})
        self.send_header("content-length", "0")
        self.end_headers()
    def log_message(self, *_):
        pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[5])), Handler).serve_forever()
"""


def program(place: Path, status: int = 200) -> Path:
    made = place / "opencode"
    made.write_text(SERVER.format(python=sys.executable, told=place / "told", status=status))
    made.chmod(0o755)
    return made


async def test_it_opens_the_first_directory_with_what_this_process_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENCODE_PERMISSION", '{"bash":"deny"}')
    monkeypatch.setenv("OPENCODE_PID", "7")
    started = Started(program(tmp_path), "id", tmp_path / "home", "secret")
    try:
        await started.open("/a b")
        assert os.getsid(started.process.pid) == started.process.pid, "it has no terminal"
        told = (tmp_path / "told").read_text()
        assert '"/session?limit=1", "/a%20b"' in told and str(Path.cwd()) in told
        assert '"DURABLE_STREAM_HEADLESS": "id"' in told and '"OPENCODE_PERMISSION"' in told
        assert "OPENCODE_PID" not in told
    finally:
        started.process.kill()
        started.process.wait()


@pytest.mark.parametrize("status", [500, 0])
async def test_one_that_opens_nothing_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    monkeypatch.setattr(starter, "START_SECONDS", 5.0 if status else 0.2)
    made = program(tmp_path, status) if status else tmp_path / "opencode"
    if not status:
        made.write_text("#!/bin/sh\nsleep 60\n")
        made.chmod(0o755)
    started = Started(made, "id", tmp_path, "secret")
    with pytest.raises(HostError):
        await started.open("/")
    assert started.process.wait(5) == -9


async def test_one_that_ends_or_does_not_start_is_said(tmp_path: Path) -> None:
    with pytest.raises(HostError):
        Started(tmp_path / "nothing", "id", tmp_path, "secret")
    with pytest.raises(HostError, match="ended with code 1"):
        await Started(Path("/bin/false"), "id", tmp_path, "secret").open("/")


def test_the_program_that_is_gone_is_looked_for_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_program() is None
    found = program(tmp_path)
    assert find_program(str(tmp_path / "gone")) == found == find_program()
    assert find_program(sys.executable) == Path(sys.executable)


def test_the_own_keys_are_those_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, variables = own_keys("t")
    monkeypatch.setenv("SOMETHING", "else")
    assert own_keys("t")[0] == kernel and own_keys("t")[1] != variables and own_keys("u")[0] != kernel
    code = "from sidecar.background.hosts.starter import own_keys; print(*own_keys('t'))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert told == list(own_keys("t"))
