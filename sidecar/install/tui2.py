"""The TUI plugin of OpenCode 2, and what OpenCode 2 made of the TUI plugin of OpenCode 1.

OpenCode 2 loads a TUI plugin from a directory below ``plugins`` in its config directory, without an entry in its
settings, ``cli.json``. OpenCode 1 loads nothing from there. When OpenCode 2 starts for the first time, it copies the
``tui.json`` of OpenCode 1 into ``cli.json``, including the entry of our plugin for OpenCode 1. OpenCode 2 passes over
that entry without a word. ``install`` and ``uninstall`` remove it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

from sidecar.install import npm
from sidecar.install.tui import TUI_NAME
from sidecar.private_files import make_directories

FILE: Final = Path("plugins") / "durable-stream" / "tui.js"
"""The plugin's file, in a config directory. OpenCode 2 expects the name ``tui.js``."""

SETTINGS_NAME: Final = "cli.json"
"""The settings of OpenCode 2's terminal. If this file does not exist, OpenCode 2 creates it from the settings of
OpenCode 1."""


def tui2_text(first_line: str, shim: Path, command: Sequence[str], home: Path) -> str:
    """The text of the plugin file. ``shim`` is the path of the server plugin's module."""
    options = f"{{ command: {json.dumps(list(command))}, home: {json.dumps(str(home))} }}"
    module = json.dumps(str(shim.with_name("tui2.js")))
    return f"{first_line}\nimport {{ tui2 }} from {module};\nexport default tui2({options});\n"


def state2_of(config: Path, first_line: str, text: str) -> Literal["ready", "missing", "outdated", "theirs"]:
    """Whether OpenCode 2 loads the plugin with this text. ``theirs``: somebody else wrote a file of that name.

    Raises:
        OSError: the file cannot be read.
    """
    file = config / FILE
    if not os.path.lexists(file):
        return "missing"
    if not _is_ours(file, first_line):
        return "theirs"
    return "ready" if file.read_bytes() == text.encode() else "outdated"


def install_tui2(config: Path, first_line: str, text: str) -> list[str]:
    """Write the plugin's file into a config directory, and remove the entry that OpenCode 2 copied; return what was
    done, line by line.

    Raises:
        OSError: a file cannot be read or written.
    """
    file, done = config / FILE, []
    if state2_of(config, first_line, text) in ("missing", "outdated"):
        make_directories(file.parent, npm.DIRECTORY_MODE)
        npm.write(file, text.encode(), is_ours=True)
        done.append(f"wrote {file}, so that OpenCode 2 has /background and a card")
    return done + remove_entry(config)


def uninstall_tui2(config: Path, first_line: str) -> list[str]:
    """Remove the plugin's file and the directories that are then empty, and the entry that OpenCode 2 copied; return
    what was done, line by line.

    Raises:
        OSError: a file cannot be read, changed or removed.
    """
    file, done = config / FILE, []
    if _is_ours(file, first_line):
        file.unlink()
        done.append(f"removed {file}")
        for directory in (file.parent, file.parent.parent):
            if not directory.is_symlink() and not any(directory.iterdir()):
                directory.rmdir()
    done += remove_entry(config)
    settings = config / SETTINGS_NAME
    if has_entry(config):
        done.append(f"{settings} names {TUI_NAME}, too: remove that entry yourself")
    # This says nothing, and OpenCode 2 would have no such file without us.
    if done and settings.is_file() and not settings.is_symlink() and _is_empty(settings.read_bytes()):
        settings.unlink()
        done.append(f"removed {settings}")
    return done


def has_entry(config: Path) -> bool:
    """Whether OpenCode 2's settings name the plugin of OpenCode 1.

    Raises:
        OSError: the settings cannot be read.
    """
    settings = config / SETTINGS_NAME
    return settings.is_file() and (config / TUI_NAME).as_uri().encode() in settings.read_bytes()


def remove_entry(config: Path) -> list[str]:
    """Remove the plugin of OpenCode 1 from the settings of OpenCode 2, if that is safe; return what was done, line by
    line.

    Raises:
        OSError: the settings cannot be read or written.
    """
    settings = config / SETTINGS_NAME
    if not has_entry(config) or settings.is_symlink():
        return []
    left = without(settings.read_bytes(), (config / TUI_NAME).as_uri())
    if left is None:
        return []
    npm.write(settings, left)
    return [f"removed {TUI_NAME} from {settings}"]


def without(content: bytes, entry: str) -> bytes | None:
    """The content of a ``cli.json`` without one of its plugins, otherwise unchanged, byte for byte.

    ``None`` if the content is not JSON with comments, or if the entry has options or is also somewhere else.
    """
    token = re.escape(json.dumps(entry).encode())
    left = re.sub(rb",\s*%b(?=\s*[,\]])|(?<=\[)\s*%b\s*(?:,\s*|(?=\]))" % (token, token), b"", content)
    try:
        before = _parse(content)
        wanted = before | {"plugins": [each for each in before["plugins"] if each != entry]}
        if before == wanted or _parse(left) != wanted or _comments(content) != _comments(left):
            return None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return left


_STRING: Final = rb'("(?:\\.|[^"\\\n])*")'
_COMMENT: Final = re.compile(_STRING + rb"|(//[^\n]*|/\*.*?\*/)", re.DOTALL)
_LAST_COMMA: Final = re.compile(_STRING + rb"|,(?=\s*[\]}])")


def _parse(content: bytes) -> Any:
    plain = _COMMENT.sub(lambda found: found[1] or b" ", content)
    return json.loads(_LAST_COMMA.sub(lambda found: found[1] or b"", plain))


def _comments(content: bytes) -> list[bytes]:
    return [found[2] for found in _COMMENT.finditer(content) if found[2]]


def _is_empty(content: bytes) -> bool:
    try:
        settings = json.loads(content)
    except (ValueError, RecursionError):
        return False
    return isinstance(settings, dict) and settings.keys() <= {"$schema", "plugins"} and settings.get("plugins") == []


def _is_ours(file: Path, first_line: str) -> bool:
    return file.is_file() and not file.is_symlink() and file.read_bytes().startswith(first_line.encode())
