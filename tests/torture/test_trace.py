"""``calls.py`` sees what really happens: its record of a script is compared with strace's of the same process.

All tests that kill, fail or lose power at a change to the disk rely on that record. strace is a separate package
(Debian: ``apt-get install strace``); without it this test fails and says so.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sidecar.support import REPOSITORY
from tests.torture.figures import note

PLAYED = """
import asyncio, json, sys
from pathlib import Path
from tests.streams.calls import watching
from tests.streams.script import play

home, start, out = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
calls = []
with watching(home, calls.append):
    asyncio.run(play(home / "store", start, lambda records: None, 200))
out.write_text(json.dumps([[c.kind, c.path, c.offset, len(c.data), c.size, c.to] for c in calls]))
"""

TRACED = (
    "write,pwrite64,pwritev,writev,fsync,fdatasync,ftruncate,fallocate,"
    "rename,renameat,renameat2,unlink,unlinkat,mkdir,rmdir"
)
_LINE = re.compile(r"^(?:\d+ +)?(\w+)\((.*)$")
_FD = re.compile(r"^\d+<([^>]*)>")
_PATHS = re.compile(r'"((?:[^"\\]|\\.)*)"')

Change = tuple[str, str, int]
"""Kind, name, and the bytes of a write or the size that a truncation leaves."""


def seen_by_strace(text: str, home: str) -> list[Change]:
    found: list[Change] = []
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None or "resumed>" in line:
            continue
        call, rest = match[1], match[2]
        if rest.rstrip().endswith(("ENOENT (No such file or directory)", "EEXIST (File exists)")):
            continue
        fd = _FD.match(rest)
        where = fd[1] if fd else ""
        paths = _PATHS.findall(rest)
        if call in ("unlinkat", "mkdir", "rmdir", "rename", "unlink", "renameat", "renameat2"):
            base = re.search(r"<([^>]*)>", rest.split(",")[0]) if call == "unlinkat" else None
            name = paths[0] if paths[0].startswith("/") or base is None else f"{base[1]}/{paths[0]}"
            kind = {"unlinkat": "rmdir" if "AT_REMOVEDIR" in rest else "unlink", "renameat2": "rename"}.get(call, call)
            if name.startswith(home + "/") and not name.endswith("-shm"):
                found.append((kind, name, 0))
        elif f"{where}/".startswith(home + "/") and not where.endswith("-shm"):
            if call in ("write", "pwrite64"):
                sizes = re.findall(r", (\d+)(?:, (\d+))?(?:\)| <unfinished)", rest)
                found.append(("write", where, int(sizes[-1][0])))
            elif call in ("fsync", "fdatasync"):
                found.append(("sync", where, 0))
            elif call == "ftruncate":
                found.append(("truncate", where, int(re.findall(r", (\d+)", rest)[0])))
            else:
                raise AssertionError(f"a call that nothing here knows: {line}")
    return found


@pytest.mark.torture
@pytest.mark.parametrize("start", ["jsonl", "sqlite"])
def test_the_record_of_a_script_is_what_strace_sees(tmp_path: Path, start: str) -> None:
    assert shutil.which("strace"), "strace is missing: apt-get install strace"
    home = tmp_path / "home"
    home.mkdir()
    trace, out = tmp_path / "trace", tmp_path / "calls.json"
    words = ["strace", "-f", "-y", "-s", "0", "-e", "signal=none", "-e", f"trace={TRACED}", "-o", str(trace)]
    subprocess.run(
        [*words, sys.executable, "-c", PLAYED, str(home), start, str(out)], cwd=REPOSITORY, check=True, timeout=600
    )
    recorded: list[Change] = []
    for kind, path, _, length, size, _ in json.loads(out.read_text()):
        if kind == "create":
            continue
        recorded.append(("sync" if kind == "sync directory" else kind, path, length if kind == "write" else size))
    real = seen_by_strace(trace.read_text(), str(home))
    names = [sorted({change[0] for change in changes}) for changes in (recorded, real)]
    assert names[0] == names[1]
    for number, (ours, theirs) in enumerate(zip(recorded, real, strict=False)):
        assert ours == theirs, (
            f"change {number}: {recorded[number - 2 : number + 3]} but {real[number - 2 : number + 3]}"
        )
    assert len(recorded) == len(real)
    note(f"trace {start}", inputs=len(real))
