"""Find bubblewrap for the tests of sandboxes, or install it from Debian's archive.

    python tools/install_bwrap.py         print the executable's path; install bubblewrap if there is none
    python tools/install_bwrap.py --path  print the path only (exit 1 when it is not installed)

It goes into .cache/bwrap with the libraries it needs, so it also runs on an older Debian. On a system without an
archive of Debian nothing is installed; the tests then use the system's bubblewrap, or say that they did not.
Exit codes: 0 ok, or not possible on this system; 1 failed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools.install_git import archive, download
from tools.installing import InstallError

PACKAGES = ("bubblewrap", "libc6", "libcap2", "libselinux1", "libpcre2-8-0")
PLACE = Path(__file__).resolve().parents[1] / ".cache" / "bwrap"


def find() -> Path | None:
    """The executable, of the system or of ``install``; ``None`` if there is none."""
    places = [PLACE / "bwrap", *map(Path, filter(None, [shutil.which("bwrap")]))]
    return next((each for each in places if each.exists()), None)


def install() -> Path | None:
    """Install bubblewrap unless there is one, and return the executable; ``None`` if that is not possible.

    Raises:
        InstallError: apt failed, or what it brought does not run.
    """
    if (found := find()) is None and (source := archive()) is not None:
        PLACE.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=PLACE.parent) as temporary:
            made = Path(temporary, "made")
            for package in download(PACKAGES, source, Path(temporary)):
                subprocess.run(["dpkg-deb", "-x", package, made], check=True)
            [loader] = made.glob("usr/lib/*/ld-linux*.so.*")
            start, own = made / "bwrap", f"$here/{loader.parent.relative_to(made)}"
            command = f'"{own}/{loader.name}" --library-path "{own}" "$here/usr/bin/bwrap" "$@"'
            start.write_text(f"#!/bin/sh\nhere=${{0%/*}}\nexec {command}\n")
            start.chmod(0o755)
            shutil.rmtree(made / "usr/share")
            shutil.rmtree(PLACE, ignore_errors=True)
            made.rename(PLACE)
        found = find()
    if found is not None and subprocess.run([found, "--version"], capture_output=True, check=False).returncode:
        raise InstallError(f"{found} does not run. Remove {found.parent} if it is {PLACE}.")
    return found


def main() -> int:
    """Find or install, or only look with ``--path``; print the executable's path."""
    try:
        binary = find() if sys.argv[1:] == ["--path"] else install()
    except InstallError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if binary is None:
        print("bubblewrap is not installed, and this system has no Debian archive.", file=sys.stderr)
        return 1 if sys.argv[1:] else 0
    print(binary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
