"""The TUI plugin of OpenCode 1, which shows ``/background`` as a native list: its file, and the ``tui.json`` that names
it.

A ``tui.json`` that somebody else wrote stays unchanged, and the server plugin's command is used instead. For OpenCode 2
see ``tui2.py``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from sidecar.install import npm

TUI_NAME: Final = "durable-stream-tui.js"
CONFIG_NAME: Final = "tui.json"


def tui_text(first_line: str, shim: Path, command: Sequence[str], home: Path) -> str:
    """The text of the plugin file. ``shim`` is the path of the server plugin's module."""
    options = f"{{ command: {json.dumps(list(command))}, home: {json.dumps(str(home))} }}"
    module = json.dumps(str(shim.with_name("tui.js")))
    return f"{first_line}\nimport {{ tui }} from {module};\nexport default tui({options}, import.meta.url);\n"


def config_text(config: Path) -> str:
    return json.dumps({"plugin": [(config / TUI_NAME).as_uri()]}, indent=2) + "\n"


def state_of(config: Path, text: str) -> Literal["ready", "missing", "outdated", "theirs"]:
    """Whether OpenCode loads the plugin with this text. ``theirs``: somebody else wrote the ``tui.json``, and it does
    not name the plugin.

    Raises:
        OSError: a file cannot be read.
    """
    file, settings = config / TUI_NAME, config / CONFIG_NAME
    if os.path.lexists(settings) and not (settings.is_file() and TUI_NAME in _read(settings)):
        return "theirs"
    if not settings.is_file() or not file.is_file():
        return "missing"
    return "ready" if _read(file) == text else "outdated"


def install_tui(config: Path, text: str) -> str | None:
    """Write both files into a config directory; return what was done, or ``None`` if there was nothing to do.

    Raises:
        OSError: a file cannot be written.
    """
    file, settings = config / TUI_NAME, config / CONFIG_NAME
    wanted = config_text(config)
    found = _read(settings) if settings.is_file() else None
    if found is None and os.path.lexists(settings):
        return None  # the path is a directory or a broken link, which is not ours
    if found is not None and TUI_NAME not in found:
        return None
    changed = [path for path, content in ((file, text), (settings, found or wanted)) if _put(path, content)]
    return f"wrote {' and '.join(map(str, changed))}, so that /background in OpenCode shows a list" if changed else None


def uninstall_tui(config: Path, first_line: str) -> list[str]:
    """Remove both files if ``install`` wrote them; return what was done, line by line.

    Raises:
        OSError: a file cannot be read, changed or removed.
    """
    file, settings, done = config / TUI_NAME, config / CONFIG_NAME, []
    if settings.is_file() and TUI_NAME in _read(settings):
        if _read(settings) == config_text(config):
            settings.unlink()
            done.append(f"removed {settings}")
        else:
            done.append(f"{settings} has changed since the installation: remove the line with {TUI_NAME} yourself")
    is_file = file.is_file() and not file.is_symlink()
    if is_file and _read(file).startswith(first_line):
        file.unlink()
        done.append(f"removed {file}")
    return done


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _put(path: Path, content: str) -> bool:
    if path.is_file() and _read(path) == content:
        return False
    npm.write(path, content.encode(), is_ours=True)
    return True
