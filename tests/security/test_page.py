"""The tests that SECURITY.md names exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text()


def test_each_test_the_page_names_exists() -> None:
    files = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "plugin-shim" / "test").glob("*.js")]
    there = {name for path in files for name in re.findall(r"def (test_\w+)", path.read_text())}
    there |= {path.name for path in files} | {str(path.relative_to(ROOT)) for path in files}
    named = set(re.findall(r"`(test_\w+(?:\.py)?|tests/[\w/]+\.py|[\w.]+\.test\.js)`", PAGE))
    assert len(named) > 30 and named - there == set()
