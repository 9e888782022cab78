"""Shared code of the installers of the tests' programs: run pip or npm, check the result, and the command line.

Only the standard library: they run before anything is installed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path


class InstallError(Exception):
    """The installation failed; the text says what happened and what to do."""


def fetch(manager: str, command: Sequence[str], what: str, limit_s: float, meaning: Callable[[str], str]) -> None:
    """Say what is fetched, run a package manager and wait for it.

    ``meaning`` turns the output of a failure into an explanation.

    Raises:
        InstallError: the package manager failed, or did not finish within ``limit_s`` seconds.
    """
    say(f"Installing {what} with {manager} …")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise InstallError(
            f"{manager} did not finish within {limit_s:g} s while it fetched {what}. Check the network, try again."
        ) from error
    if done.returncode:
        raise InstallError(meaning(done.stderr or done.stdout))


def say(text: str) -> None:
    """Print what happens now, on stderr: a person waits, and stdout is for the result."""
    print(text, file=sys.stderr, flush=True)


def tail_of(output: str, lines: int) -> str:
    """The end of what a program printed, indented."""
    return "\n".join(f"  {line}" for line in output.strip().splitlines()[-lines:])


def check_version(binary: Path, expected: str, place: Path, limit_s: float) -> None:
    """Ask the installed program for its version.

    Raises:
        InstallError: the program does not run, or its version is not ``expected``; the user should then remove
            ``place``.
    """
    try:
        # OpenCode writes into its home even for this.
        with tempfile.TemporaryDirectory() as home:
            places = {name: home for name in os.environ if name.startswith("XDG_")} | {"HOME": home}
            done = subprocess.run(
                [str(binary), "--version"],
                env=os.environ | places,
                capture_output=True,
                text=True,
                timeout=limit_s,
                check=False,
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstallError(f"{binary} does not run: {error}. Remove {place} and try again.") from error
    if done.returncode or expected not in (done.stdout.strip(), done.stderr.strip()):
        said = (done.stdout + done.stderr).strip() or f"exit code {done.returncode}"
        raise InstallError(f"{binary} --version should say {expected}, but says: {said}\nRemove {place} and try again.")


def command_line(
    arguments: list[str] | None,
    *,
    description: str,
    version: str,
    binary_path: Callable[[str], Path],
    install: Callable[[str], Path],
) -> int:
    """Parse the options, install or only look, print the executable's path. Return the exit code: 0 ok, 1 failed."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--path", action="store_true", help="print the executable's path, install nothing")
    parser.add_argument("--version", default=version, metavar="V", help="another version than the pinned %(default)s")
    options = parser.parse_args(arguments)
    try:
        if options.path:
            binary = binary_path(options.version)
            sys.stdout.write(f"{binary}\n")
            return 0 if binary.exists() else 1
        sys.stdout.write(f"{install(options.version)}\n")
    except InstallError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0
