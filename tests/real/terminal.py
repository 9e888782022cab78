"""A terminal for OpenCode's TUI: a pty and an emulator, so that a test reads the screen like a user."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pyte

from tests.real.model_server import HANG_LIMIT_S

COLUMNS, ROWS = 120, 40
ENTER = b"\r"
DOWN = b"\x1b[B"
READY = "Ask anything"
"""What the empty prompt of the TUI says."""

_WHERE_IS_THE_CURSOR = b"\x1b[6n"
_QUIT_LIMIT_S = 20
_POLL_S = 0.05
_BETWEEN_COLUMNS = re.compile(r" {2,}")
"""A wide screen has a sidebar beside the answers."""


class Terminal:
    """One program on a screen of 120 by 40; a context manager that ends it.

    Args:
        command: the program and its arguments.
        directory: where it runs.
        environment: all of its environment; ``TERM`` is added.
        columns: width of the screen.
    """

    def __init__(
        self, command: Sequence[str], directory: Path, environment: dict[str, str], *, columns: int = COLUMNS
    ) -> None:
        self._screen = pyte.Screen(columns, ROWS)
        self._stream = pyte.ByteStream(self._screen)
        self._drawing = threading.Lock()
        self._ended = False
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
        self.process = subprocess.Popen(
            list(command),
            cwd=directory,
            env=environment | {"TERM": "xterm-256color"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self._thread = threading.Thread(target=self._read, name="terminal", daemon=True)
        self._thread.start()

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the program and release the terminal. Idempotent."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(_QUIT_LIMIT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._thread.join(HANG_LIMIT_S)

    def press(self, keys: bytes) -> None:
        """Send keys unchanged."""
        os.write(self._master, keys)

    def prompt(self, text: str, answer: str) -> None:
        """Type a prompt, see it, send it, and wait until the answer is on the screen and the turn is over."""
        self.press(text.encode())
        self.wait_for(text)
        self.press(ENTER)
        self.wait_until(lambda lines: _answered(lines, answer), f"the answer {answer!r}")

    def quit(self) -> int:
        """Quit like a user, with ctrl-c on an empty prompt, and return the exit code."""
        self.press(b"\x03")
        try:
            return self.process.wait(HANG_LIMIT_S)
        finally:
            self.close()

    def lines(self) -> list[str]:
        """The screen now, without the spaces at the ends of the lines."""
        with self._drawing:
            return [line.rstrip() for line in self._screen.display]

    def wait_for(self, text: str) -> list[str]:
        """The screen, once ``text`` is on one of its lines.

        Raises:
            TimeoutError: it did not appear, or the program ended; the message shows the screen.
        """
        return self.wait_until(lambda lines: any(text in line for line in lines), repr(text))

    def wait_until(self, condition: Callable[[list[str]], bool], what: str) -> list[str]:
        """The screen, once ``condition`` holds for its lines; raises like ``wait_for``."""
        deadline = time.monotonic() + HANG_LIMIT_S
        while not condition(lines := self.lines()):
            if self._ended or time.monotonic() > deadline:
                state = "the program ended" if self._ended else f"{HANG_LIMIT_S} s passed"
                shown = "\n".join(line for line in lines if line)
                raise TimeoutError(f"{state} without {what} on the screen:\n{shown}")
            # Not at each piece that comes: to read the screen costs more than to draw on it.
            time.sleep(_POLL_S)
        return lines

    def _read(self) -> None:
        try:
            while data := os.read(self._master, 65536):
                # The TUI asks where its cursor is and waits for the answer before it draws.
                for _ in range(data.count(_WHERE_IS_THE_CURSOR)):
                    os.write(self._master, b"\x1b[1;1R")
                with self._drawing:
                    self._stream.feed(data)
        except OSError:
            pass  # Linux says EIO when the last process of the terminal is gone
        finally:
            os.close(self._master)
            self._ended = True


def _answered(lines: list[str], answer: str) -> bool:
    said = any(answer in _BETWEEN_COLUMNS.split(line.strip()) for line in lines)
    return said and not any("esc interrupt" in line for line in lines)
