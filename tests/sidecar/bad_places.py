"""Run commands in a home on a read-only or full file system, in a separate mount namespace."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from tests.sidecar.bad_stores import snapshot
from tests.sidecar.cli.helpers import run


def place(kind: str, home: Path) -> None:
    """Put the home on such a file system, at the same path."""
    if kind == "read-only":
        subprocess.run(["mount", "--bind", home, home], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", home], check=True)
        return
    aside = home.with_name("aside")
    shutil.copytree(home, aside)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k,mode=0700", "tmpfs", home], check=True)
    shutil.copytree(aside, home, dirs_exist_ok=True)
    home.chmod(0o700)
    fill(home)


def fill(home: Path) -> None:
    """Use up all remaining space."""
    with (home / "filler").open("ab", buffering=0) as filler:
        for size in (4096, 1):
            try:
                while filler.write(b"\0" * size):
                    pass
            except OSError:
                continue


def contents(store: Path) -> dict[str, bytes]:
    """Files without times: on a full disk ``serve`` may still rewrite the head file with the same bytes."""
    return {name: content for name, (_, content) in snapshot(store).items()}


def main() -> None:
    asked = json.load(sys.stdin)
    home = Path(asked["home"])
    place(asked["kind"], home)
    before = contents(home / "store")
    answers: dict[str, object] = {}
    changed = []
    for name, arguments in asked["commands"].items():
        done = run(home, *arguments)
        answers[name] = (done.code, done.out, done.err)
        if contents(home / "store") != before:
            changed.append(name)
    print(json.dumps(answers | {"changed": changed}))


if __name__ == "__main__":
    main()
