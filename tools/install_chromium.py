"""Find a Chromium for the tests of the page, or install one.

    python tools/install_chromium.py    print the executable's path; install Chromium if there is none

The Chromium without windows is best: it takes half the processor time of a whole one. Where this user may do that, the
system's package manager installs it. Otherwise a Chromium or Chrome on the PATH is used as it is, or Playwright
installs its own. Exit codes: 0 ok, 1 failed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools.installing import say

SHELL = "chromium-headless-shell"
NAMES = (SHELL, "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
LIMIT_S = 600


def find() -> str | None:
    """The path of an installed Chromium; ``None`` if there is none."""
    on_path = next(filter(None, map(shutil.which, NAMES)), None)
    return on_path or _of_playwright()


def _of_playwright() -> str | None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if Path(path).exists() else None


def main() -> int:
    """Print the path of Chromium, after installing it if needed."""
    tried = []
    may_install = os.geteuid() == 0 and shutil.which("apt-get") is not None
    # A machine without a network does not wait for it at each run.
    apt = ["apt-get", "-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=10", "-qq"]
    shell = [[*apt, "install", "-y", SHELL]] if may_install and shutil.which(SHELL) is None else []
    update, own = [*apt, "update"], [sys.executable, "-m", "playwright", "install", "chromium"]
    others = [update, *shell, [*apt, "install", "-y", "chromium"]] if may_install else []
    for command in (*(shell or [[]]), *others, own):
        if command:
            say(f"Installing Chromium for the tests of the page: {' '.join(command)} …")
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
            tried.append(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()[-300:]}")
        if (found := find()) is not None:
            print(found)
            return 0
    told = "\n".join(tried)
    print(f"Chromium is missing. Install it (Debian: `apt install chromium`), then try again.\n{told}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
