"""Write ``plugin-shim/src/tools.json``: the tools that a plugin registers before the first sidecar has run in a home.

``--check`` writes nothing and fails if the file is not as it would be written.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from sidecar.background.tools import tools_json

PAGE = ROOT / "plugin-shim" / "src" / "tools.json"


def main() -> int:
    """Write or check the file."""
    text = json.dumps(tools_json(), indent=1) + "\n"
    if "--check" in sys.argv[1:]:
        if not PAGE.exists() or PAGE.read_text() != text:
            print(f"{PAGE.relative_to(ROOT)} is not fresh: run `make docs`")
            return 1
        return 0
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
