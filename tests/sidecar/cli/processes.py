"""Commands that run beside a test."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import IO, Any

from tests.sidecar.cli.helpers import LIMIT_SECONDS, command, environment


class Process:
    """A running command; its lines are awaited, with a hang limit."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self._process = subprocess.Popen(
            command(home, *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), text=True
        )
        self._readers: list[tuple[Thread, IO[str]]] = []
        self.out, self.err = self._lines(self._process.stdout), self._lines(self._process.stderr)

    def _lines(self, pipe: IO[str] | None) -> Queue[str]:
        lines: Queue[str] = Queue()
        assert pipe is not None

        def read() -> None:
            for line in pipe:
                lines.put(line)

        self._readers.append((Thread(target=read, daemon=True), pipe))
        self._readers[-1][0].start()
        return lines

    def record(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(self.out.get(timeout=LIMIT_SECONDS))
        except Empty:
            said = "".join(self.err.queue)
            raise AssertionError(f"no record; exit code {self._process.poll()}, {said!r}") from None
        return found

    def interrupt(self) -> int:
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(LIMIT_SECONDS)

    def end(self) -> None:
        self._process.kill()
        self._process.wait(LIMIT_SECONDS)
        for reader, pipe in self._readers:
            reader.join(LIMIT_SECONDS)
            pipe.close()
