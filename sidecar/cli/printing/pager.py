"""Show long text in the user's pager."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext, suppress
from itertools import chain
from pathlib import PurePath

_STRAIGHT = frozenset({"", "cat"})


def pager_command() -> list[str]:
    """The command in ``$PAGER``, or else ``less`` if it is installed; empty if text is printed without a pager."""
    given = os.environ.get("PAGER")
    if os.environ.get("TERM") in (None, "dumb"):
        return []
    if given is None:
        return ["less", "-R"] if shutil.which("less") else []
    try:
        words = shlex.split(given)
    except ValueError:
        return []
    if given.strip() in _STRAIGHT or not words or shutil.which(words[0]) is None:
        return []
    # Without -R, less prints the escape codes instead of colours.
    return [*words, "-R"] if PurePath(words[0]).name == "less" else words


def page(lines: Iterable[str], height: int, *, wanted: bool = True) -> None:
    """Write ``lines`` to the terminal, through a pager unless all of them fit on the screen.

    The pager gets the lines one by one, and may exit before the last one.
    """
    source = iter(lines)
    first: list[str] = []
    for line in source:
        first.append(line)
        if len(first) >= height:
            break
    command = pager_command() if wanted and len(first) >= height else []
    if not command:
        for line in chain(first, source):
            sys.stdout.write(f"{line}\n")
        return
    sys.stdout.flush()
    _through(command, chain(first, source))


def _through(command: list[str], lines: Iterator[str]) -> None:
    # These are the options that git uses: F exits at once if the text fits on one screen, R shows colours, and X leaves
    # the text on the screen after less exits.
    environment = {"LESS": "FRX", **os.environ}
    pager = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, text=True, errors="replace")  # noqa: S603 - the user's own pager
    # Ctrl-C is for the pager, for example to stop a search; it must not end this program.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        # The user may quit the pager before the last line, which breaks the pipe.
        with suppress(BrokenPipeError), pager.stdin or nullcontext() as stdin:
            for line in lines:
                if stdin is not None:
                    stdin.write(f"{line}\n")
    finally:
        pager.wait()
        signal.signal(signal.SIGINT, before)
