"""The docs tell the truth: what they show is printed, what they name exists."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.generate_readme import DemoHome, stale_blocks

ROOT = Path(__file__).parents[1]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    ROOT / "plugin-shim" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]


def test_the_readme_shows_what_the_commands_print() -> None:
    with DemoHome() as home:
        assert stale_blocks(home) == [], "run: python tools/generate_readme.py"


def test_every_command_is_in_the_readme_and_every_named_command_exists() -> None:
    listed = subprocess.run(
        [sys.executable, "-m", "sidecar.cli", "--help"], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    commands = set(re.findall(r"^  ([a-z]+)  ", listed, re.MULTILINE))
    readme = (ROOT / "README.md").read_text()
    assert {c for c in commands if f"`{c}`" not in readme} == set()
    named = {name for page in PAGES for name in re.findall(r"(?<!/)durable-stream ([a-z]+)\b", page.read_text())}
    assert named - commands - {"for"} == set()


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_named_files_exist(page: Path) -> None:
    text = page.read_text()
    for target, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", text):
        if "://" not in target:
            linked = page.parent / target if target else page
            assert linked.exists(), target
            assert not anchor or anchor in anchors(linked), f"{target}#{anchor}"
    for name in re.findall(r"`((?:streams|bridge|sidecar|plugin-shim|tests|tools|docs)/[\w./-]+\.\w+)`", text):
        assert (ROOT / name).exists(), name


def test_generated_pages_are_fresh() -> None:
    for tool in ("generate_schema.py", "generate_events.py", "generate_subjects.py"):
        subprocess.run([sys.executable, str(ROOT / "tools" / tool), "--check"], check=True, timeout=60)
