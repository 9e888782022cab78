"""The command that adds an extra's libraries to this installation."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

PACKAGE: Final = "opencode-durable-stream"


def extra_command(extra: str, prefix: str = sys.prefix) -> str:
    """The shell command that adds ``extra``, with the tool that made this installation: pipx, uv or pip."""
    wanted = _libraries(extra)
    parts = Path(prefix).parts
    if "pipx" in parts and "venvs" in parts[:-1]:
        return f"pipx inject {parts[parts.index('venvs') + 1]} {wanted}"
    if "uv" in parts and "tools" in parts[:-1]:
        return f"uv pip install --python {prefix} {wanted}"
    return f"{Path(prefix) / 'bin' / 'python'} -m pip install {wanted}"


def _libraries(extra: str) -> str:
    """The extra's requirements, quoted for a shell."""
    from importlib.metadata import PackageNotFoundError, requires  # import these only if something is missing

    try:
        found = requires(PACKAGE) or []
    except PackageNotFoundError:
        found = []
    mine = [text.partition(";")[0].strip() for text in found if re.search(rf"extra\s*==\s*['\"]{extra}['\"]", text)]
    return " ".join(f"'{text}'" for text in mine) or f"'{PACKAGE}[{extra}]'"
