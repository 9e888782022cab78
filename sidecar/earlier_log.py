"""A home whose log is gone: somebody deleted ``store/``, or it was lost, and a new log begins in its place.

Recording must go on, so no start refuses that. But it is told: by a warning in ``sidecar.log``, and as long as that is
kept and the new log is the home's, by ``status`` and ``doctor``. No file of its own is needed to know it: the first
sidecar of a home writes the token after it has begun the log, so a home with a token has had one.
"""

from __future__ import annotations

import os
import re
from typing import Final

from sidecar.home import Home
from streams.errors import StreamError
from streams.stores.directory import MANIFEST, read_manifest
from streams.stores.presence import located

MEANT: Final = "if that was not meant, restore store/ from a backup"

_BEGUN: Final = re.compile(r"^(\S+ [\d:]+)\S* WARNING sidecar: .*a new log was begun \((\w+)\)", re.MULTILINE)


def is_gone(home: Home) -> bool:
    """Whether a sidecar served this home before, and no log is named in it. What lies there all the same is no matter.

    Only the holder of the home's lock gets an answer that stays right.
    """
    return os.path.lexists(home.token_path) and not os.path.lexists(home.store_path / MANIFEST)


def warning(home: Home, log_id: str) -> str:
    """What the sidecar logs after it has begun a log although ``is_gone``; ``told`` looks for it."""
    return (
        f"the log that this home held before is gone: {home.store_path} was deleted or emptied; "
        f"a new log was begun ({log_id}); {MEANT}"
    )


def told(home: Home) -> tuple[str, str] | None:
    """What to say of a log that is gone, and what to do; ``None`` where none is, or where that cannot be known."""
    try:
        manifest = read_manifest(home.store_path)
        if manifest is None:
            located(home.store_path)  # what is left of a log is no log that is gone as a whole
    except (StreamError, OSError):
        return None  # which is told where the log is read
    if manifest is None:
        if not is_gone(home):
            return None
        text = f"the log that this home held before is gone: {home.store_path} was deleted or emptied"
        return text, f"{MEANT} before the next start, which begins a new log"
    for path in (home.log_path, *(home.log_path.with_name(f"{home.log_path.name}.{n}") for n in range(1, 101))):
        try:
            found = _BEGUN.findall(path.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            return None
        for when, log_id in found:
            if log_id == manifest.log_id:
                text = f"the log that this home held before was gone at {when}, and a new log was begun"
                return text, f"{MEANT}, with the sidecar stopped"
    return None
