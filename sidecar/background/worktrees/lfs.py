"""Files of Git LFS. Git stores a pointer to such a file, and the disk may have what it points to.

The program ``git-lfs`` is not run. A file with exactly the content that its pointer names is an unchanged file.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import shutil
from pathlib import Path
from typing import Final

from sidecar.background.worktrees.git import Git, nul

_LONGEST: Final = 1024
"""A longer file is not a pointer, as Git LFS defines it."""

_POINTER: Final = re.compile(
    r"^([0-9a-f]{40,64})\nversion https://git-lfs\.github\.com/spec/v1\n(?:ext-.*\n)*"
    r"oid sha256:([0-9a-f]{64})\nsize ([0-9]+)\n$",
    re.MULTILINE,
)
"""An object's id, followed by what the object contains."""


MAX_FILLED: Final = 1024 * 1024 * 1024
"""Maximum size of all files that are filled in a worktree, in bytes."""


async def fill(git: Git, repository: str) -> list[str]:
    """Put the files themselves in the place of their pointers, as far as the repository has them. Returns the names
    that are still pointers.

    Without the program ``git-lfs``, all stay pointers: git itself could not tell that such a file is unchanged.
    """
    assert git.files is not None
    given = nul(await git.names("ls-files", "-z"))
    fields = (await git.run("check-attr", "-z", "--stdin", "filter", given=given)).split("\0")
    names = [name for name, value in zip(fields[::3], fields[2::3], strict=False) if value == "lfs"]
    return await asyncio.to_thread(_fill, Path(git.files), Path(repository, "lfs/objects"), names)


def _fill(root: Path, store: Path, names: list[str]) -> list[str]:
    left, room, has_program = [], MAX_FILLED, shutil.which("git-lfs") is not None
    for name in names:
        path = root / name
        if path.is_symlink() or not path.is_file() or path.stat().st_size > _LONGEST:
            continue
        pointer = _POINTER.match(f"{'0' * 40}\n{path.read_bytes().decode('utf-8', 'replace')}")
        if pointer is None:
            continue
        digest, size = pointer[2], int(pointer[3])
        kept = store / digest[:2] / digest[2:4] / digest
        if not has_program or size > room or not _is(kept, digest, size):
            left.append(name)
            continue
        room -= size
        shutil.copyfile(kept, path)
    return left


async def changed(git: Git, names: list[str]) -> list[str]:
    """These names without those whose file is what the pointer in the index points to."""
    if not names or git.files is None:
        return names
    wanted = set(names)
    stored: dict[str, str] = {}
    for line in await git.names("ls-files", "--stage", "-z"):
        about, _, name = line.partition("\t")
        if name in wanted and about.startswith("100"):
            stored[name] = about.split(" ")[1]
    contents = "".join(f"{each}\n" for each in dict.fromkeys(stored.values()))
    sizes = await git.run("cat-file", "--batch-check=%(objectname) %(objectsize)", given=contents)
    short = [each.split(" ")[0] for each in sizes.splitlines() if int(each.split(" ")[1]) <= _LONGEST]
    printed = await git.run("cat-file", "--batch=%(objectname)", given="".join(f"{each}\n" for each in short))
    pointers = {found[1]: (found[2], int(found[3])) for found in _POINTER.finditer(printed)}
    same = set()
    for name, content in stored.items():
        pointer = pointers.get(content)
        if pointer is not None and await asyncio.to_thread(_is, Path(git.files, name), *pointer):
            same.add(name)
    return [name for name in names if name not in same]


def _is(path: Path, digest: str, size: int) -> bool:
    if path.is_symlink() or not path.is_file() or path.stat().st_size != size:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == digest
