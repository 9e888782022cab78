"""What the terminals of OpenCode tell about their focus. Each terminal's plugin writes one small file in the home."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Final

from sidecar.background.people.rings import Focus
from sidecar.processes import still_runs

FOLDER: Final = "terminals"
MOST_FILES: Final = 100
MOST_BYTES: Final = 4096
_RANK: Final[tuple[Focus, ...]] = ("unknown", "away", "front")


def read_focus(home: Path) -> dict[str, Focus]:
    """The focus of each session that a terminal shows. A session in two terminals is in front if one of them is.
    ``unknown`` is the focus of a terminal that reports none.

    A file that cannot be read, or whose terminal has ended, says nothing.
    """
    found: dict[str, Focus] = {}
    for path in islice((home / FOLDER).glob("*.json"), MOST_FILES):
        try:
            if path.is_symlink() or (known := path.stat()).st_size > MOST_BYTES:
                continue
            told = json.loads(path.read_bytes())
            session, focus = told["session"], told["focus"]
            if not still_runs(int(path.stem), round(known.st_mtime * 1000)):
                path.unlink(missing_ok=True)  # a killed terminal leaves its file
                continue
        except (OSError, ValueError, TypeError, KeyError):
            continue
        if not isinstance(session, str):
            continue
        if focus in _RANK and _RANK.index(focus) >= _RANK.index(found.get(session, "unknown")):
            found[session] = focus
    return found
