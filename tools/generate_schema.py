"""Write docs/frames.schema.json from bridge/opencode/link/frames.py; ``--check`` only reports whether it is stale."""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bridge.opencode.link.frames import json_schema

TARGET = ROOT / "docs" / "frames.schema.json"


def render() -> str:
    """The file's exact text, whichever msgspec is installed: some keep the indentation of docstrings."""
    return json.dumps(_dedented(json_schema()), indent=2, sort_keys=True) + "\n"


def _dedented(value: Any) -> Any:
    if isinstance(value, list):
        return [_dedented(each) for each in value]
    if not isinstance(value, dict):
        return value
    text = value.get("description")
    own = {"description": inspect.cleandoc(text)} if isinstance(text, str) else {}
    return {name: _dedented(each) for name, each in value.items()} | own


def main(arguments: list[str]) -> int:
    """Return exit code 0 if the file is up to date or was updated, 1 if ``--check`` finds it stale, 2 on misuse."""
    if arguments not in ([], ["--check"]):
        sys.stderr.write("usage: generate_schema.py [--check]\n")
        return 2
    text = render()
    if arguments:
        fresh = TARGET.exists() and TARGET.read_text() == text
        if not fresh:
            sys.stderr.write(f"{TARGET.relative_to(ROOT)} is stale: run python tools/generate_schema.py\n")
        return 0 if fresh else 1
    TARGET.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
