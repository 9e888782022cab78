"""Run the commands that the README shows, and put their output into it; and draw the picture of one of them.

Such a command is a block that begins with ``$ durable-stream``. It runs on a
terminal of 100 columns, in a home with the demo's recording.
``stale_blocks`` only compares, ignoring ids, times and pids.
"""

from __future__ import annotations

import asyncio
import fcntl
import html
import io
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from streams.log.reader import LogReader

README = ROOT / "README.md"
PICTURE, DRAWN = ROOT / "docs" / "read.svg", "read"
"""The picture in the README, and the command whose output it shows."""
RECORDING = ROOT / "sidecar" / "record" / "recordings" / "demo.jsonl"
COLUMNS = 100
SHOWN_HOME = "/home/ada/.local/share/durable-stream"

_BLOCK = re.compile(r"```console\n\$ durable-stream (?P<arguments>[^\n]*)\n(?P<output>.*?)```", re.DOTALL)
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_VARIES = re.compile(
    r"\b[0-9A-HJKMNP-TV-Z]{26}\b"  # the ids of events
    r"|(?<=  )[0-9A-HJKMNP-TV-Z]{6}(?=  )"  # the last six characters of the ids of events
    r"|\b[0-9a-f]{64}\b"
    r"|\b\d+(\.\d+)?(ms|s|m|h|d)\b( ago)?|pid \d+|port \d+|\d+ MiB"
    r"|\d{2}:\d{2}:\d{2}"
    r"|/tmp/\S+|/var/folders/\S+"
)


_EVENT = re.compile(r"\b[0-9A-HJKMNP-TV-Z]{6}\b")
WHY_POSITION = 27
"""The record used for "an event" in a command: the answer of the first child agent."""


def told(arguments: str, home: Path) -> str:
    """Return ``arguments`` with the event's id in ``home``, because each play makes new ids."""
    if _EVENT.search(arguments) is None:
        return arguments
    return _EVENT.sub(asyncio.run(_event_id(home))[-6:], arguments)


async def _event_id(home: Path) -> str:
    async for record in LogReader(home / "store").read_all(after=WHY_POSITION - 1):
        return record.event.id
    raise LookupError(f"the log in {home} has no record {WHY_POSITION}")


def run(arguments: str, home: Path) -> str:
    """Return what ``durable-stream ARGUMENTS`` prints on a terminal, without colours and trailing spaces."""
    text = _ANSI.sub("", printed(arguments, home, NO_COLOR="1")).replace("\r\n", "\n").replace(str(home), SHOWN_HOME)
    return "".join(line.rstrip() + "\n" for line in text.strip("\n").split("\n"))


def draw(home: Path) -> str:
    """Return an SVG of the output of ``DRAWN``, in the colours of the terminal."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text.from_ansi(printed(DRAWN, home, COLORTERM="truecolor").replace("\r\n", "\n").strip("\n")))
    return console.export_svg(title=f"durable-stream {DRAWN}", unique_id=DRAWN)


def printed(arguments: str, home: Path, **variables: str) -> str:
    """Return everything that ``durable-stream ARGUMENTS`` writes to a terminal."""
    command = [sys.executable, "-m", "sidecar.cli", *shlex.split(arguments)]
    environment = {
        **os.environ,
        "DURABLE_STREAM_HOME": str(home),
        "XDG_CONFIG_HOME": str(home.parent / "config"),
        "TERM": "xterm-256color",
        "PAGER": "cat",
        "TZ": "UTC",
        **variables,
    }
    environment.pop("COLUMNS", None)
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment, cwd=ROOT):
        os.close(slave)
        output = b"".join(_read(master))
    os.close(master)
    return output.decode()


def _read(master: int) -> Iterator[bytes]:
    while True:
        try:
            chunk = os.read(master, 65536)
        except OSError:  # at the end of the output, Linux reports EIO where other systems report end of file
            return
        if not chunk:
            return
        yield chunk


class DemoHome:
    """A temporary home with the plugin installed and the demo's session; its sidecar is stopped at the end."""

    def __enter__(self) -> Path:
        self._directory = tempfile.TemporaryDirectory(prefix="readme-")
        home = Path(self._directory.name) / "home"
        run("install", home)
        run(f"play {RECORDING}", home)
        return home

    def __exit__(self, *_: object) -> None:
        run("stop", Path(self._directory.name) / "home")
        self._directory.cleanup()


def stale_blocks(home: Path) -> list[str]:
    """Return the commands whose output in the README, or in its picture, is stale."""
    stale = []
    for block in _BLOCK.finditer(README.read_text()):
        actual = run(told(block["arguments"], home), home)
        if _lasting(actual) != _lasting(block["output"]):
            stale.append(f"$ durable-stream {block['arguments']}\n{actual}")
    drawn = "".join(re.findall(rf"{DRAWN}-line-\d+\)\">(.*?)</text>", PICTURE.read_text()))
    if "".join(html.unescape(drawn).split()) != "".join(run(DRAWN, home).split()):
        stale.append(f"{PICTURE}: $ durable-stream {DRAWN}")
    return stale


def _lasting(output: str) -> str:
    """Return the part of an output that is the same in every run. Column widths vary too, so spaces and line breaks are
    collapsed.
    """
    return re.sub(r"[ ─]+", " ", _VARIES.sub("#", output))


def main() -> int:
    """Rewrite all blocks and the picture."""
    with DemoHome() as home:

        def anew(block: re.Match[str]) -> str:
            arguments = told(block["arguments"], home)
            output = run(arguments, home)
            return f"```console\n$ durable-stream {arguments}\n{output}```"

        text = _BLOCK.sub(anew, README.read_text())
        PICTURE.write_text(draw(home))
    README.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
