"""Install the newest git beside the system's, for the tests: Debian's packages, unpacked in the repository's cache.

    python tools/install_git.py         install if absent, print the executable's path
    python tools/install_git.py --path  print the path only (exit 1 when it is not installed)

The packages come from the mirror that apt uses here, and apt checks their signatures. They bring their own C library,
so they use and change nothing of the system. Needs apt and dpkg-deb, but not root. Where there is no Debian archive, it
says so and ends with 0: the tests then use the system's git if it is new enough, or say that they did not.
Exit codes: 0 ok, or not possible on this system; 1 failed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools.installing import InstallError, fetch, tail_of

OLDEST = (2, 54)
"""The first git that runs hooks which stand in the configuration."""

SUITE = "sid"
PACKAGES = ("git", "libc6", "libpcre2-8-0", "zlib1g")
KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
PLACE = Path(__file__).resolve().parents[1] / ".cache" / "git-newest"
LIMIT_S = 300


def binary_path() -> Path:
    """Where the executable is, or will be after the installation."""
    return PLACE / "usr/lib/git-core/git"


def is_new(git: str | Path) -> bool:
    """Whether this git runs hooks which stand in the configuration."""
    done = subprocess.run([git, "version"], capture_output=True, text=True, check=False)
    found = re.match(r"git version (\d+)\.(\d+)", done.stdout)
    return found is not None and (int(found[1]), int(found[2])) >= OLDEST


def archive() -> str | None:
    """The address of the Debian archive that apt uses here; ``None`` if this system has none."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return None
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    return next((each for each in listed if each.rstrip("/").endswith("/debian")), None)


def install() -> Path | None:
    """Install git unless it is there, check that it runs, and return the executable; ``None`` if that is not possible.

    Raises:
        InstallError: apt failed, or what it brought does not run or is not new.
    """
    binary = binary_path()
    if not binary.exists():
        if (source := archive()) is None:
            return None
        PLACE.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=PLACE.parent) as temporary:
            made = Path(temporary, "made")
            for package in download(PACKAGES, source, Path(temporary)):
                subprocess.run(["dpkg-deb", "-x", package, made], check=True)
            _write_start(made)
            shutil.rmtree(PLACE, ignore_errors=True)
            made.rename(PLACE)
    if not is_new(binary):
        raise InstallError(f"{binary} does not run, or is older than git {'.'.join(map(str, OLDEST))}. Remove {PLACE}.")
    return binary


def download(packages: Sequence[str], source: str, place: Path) -> list[Path]:
    """Download the newest packages of a Debian archive into an empty directory.

    Raises:
        InstallError: apt failed.
    """
    for name in ("state/lists/partial", "cache/archives/partial", "sources"):
        Path(place, name).mkdir(parents=True)
    signed = f"[signed-by={KEYS}] " if KEYS.exists() else ""
    Path(place, "sources/archive.list").write_text(f"deb {signed}{source} {SUITE} main\n")
    settings = {
        "Dir::State": place / "state",
        "Dir::State::status": "/dev/null",
        "Dir::Cache": place / "cache",
        "Dir::Etc::SourceList": "/dev/null",
        "Dir::Etc::SourceParts": place / "sources",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
        "Acquire::http::Timeout": "20",
    }
    apt = ["apt-get", "-qq", *(part for key, value in settings.items() for part in ("-o", f"{key}={value}"))]
    for command in (["update"], ["download", *packages]):
        fetch("apt", ["env", "-C", str(place), *apt, *command], f"{packages[0]} from {source}", LIMIT_S, _failure)
    return sorted(place.glob("*.deb"))


def _failure(output: str) -> str:
    return f"apt could not fetch a package. Check the network, then try again.\napt said:\n{tail_of(output, 8)}"


def _write_start(place: Path) -> None:
    """The program that starts git with its own libraries, wherever it is. Git starts itself through it, too."""
    [loader] = place.glob("usr/lib/*/ld-linux*.so.*")
    start = place / binary_path().relative_to(PLACE)
    start.unlink()
    start.write_text(
        f"""#!/bin/sh
here=${{0%/*}} own=${{0%/*}}/../{loader.parent.name}
export GIT_EXEC_PATH="$here"
exec "$own/{loader.name}" --argv0 "$0" --library-path "$own" "$here/../../bin/git" "$@"
"""
    )
    start.chmod(0o755)
    shutil.rmtree(place / "usr/share")


def main() -> int:
    """Install, or only look with ``--path``; print the executable's path."""
    try:
        binary = binary_path() if sys.argv[1:] == ["--path"] else install()
    except InstallError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if binary is None:
        print("The newest git is not installed: this system has no Debian archive.", file=sys.stderr)
        return 0
    print(binary)
    return 0 if binary.exists() else 1


if __name__ == "__main__":
    sys.exit(main())
