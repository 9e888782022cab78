"""Take the pictures of the inspector for README and docs, with a real Chromium over a recorded session.

    python tools/generate_screenshots.py [DIRECTORY]    default: docs

Pictures differ between machines (fonts), so nothing compares them; take them anew when the page changes.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from playwright.sync_api import sync_playwright

from tests.sidecar.cli.helpers import make_home
from tests.sidecar.inspector.conftest import DEMO, QUIET, RECORDINGS, aside, inspecting
from tools.install_chromium import find

SESSION = "/s/ses_dff0a5b68ffegK4yUQGH09hey7"
PICTURES = (
    ("inspector", f"{SESSION}?at=34", "light", 1280, ".talk > *"),
    ("inspector-timeline", f"{SESSION}/timeline", "dark", 1280, ".map button"),
    ("inspector-sessions", "/", "light", 1280, ".row"),
    ("inspector-search", f"{SESSION}/timeline?q=login", "light", 1280, "#found .hit"),
    ("inspector-files", f"{SESSION}/files", "dark", 1280, ".diff"),
    ("inspector-costs", "/costs?by=session", "light", 1280, ".spent"),
    ("inspector-compare", f"/compare{SESSION[2:]}{SESSION[2:]}?at=20", "light", 1280, ".picture:nth-of-type(2) .lanes"),
    ("inspector-narrow", f"{SESSION}/timeline", "light", 390, ".map button"),
)
"""The name of each, what it shows, its colours and width, and what is there once it is drawn."""


def main(directory: Path) -> None:
    """Write every picture."""
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        home = aside(make_home, Path(place) / "home", *RECORDINGS, DEMO)
        browser = playwright.chromium.launch(executable_path=find(), args=list(QUIET))
        for name, path, scheme, width, drawn in PICTURES:
            with inspecting(home) as served:
                page = browser.new_page(viewport={"width": width, "height": 720}, color_scheme=scheme)
                page.goto(served.link)
                page.goto(served.base + path)
                page.wait_for_selector(drawn)
                page.screenshot(path=directory / f"{name}.png")
                page.close()
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parents[1] / "docs")
