"""Take the pictures of the inspector for README and docs, with a real Chromium over a recorded session.

    python tools/generate_screenshots.py [DIRECTORY]    default: docs

Pictures differ between machines (fonts), so nothing compares them; take them anew when the page changes.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from playwright.sync_api import sync_playwright

from streams.event import StreamEvent
from streams.identity import seeded_identity
from tests.sidecar.cli.helpers import make_home
from tests.sidecar.inspector.conftest import DEMO, QUIET, RECORDINGS, aside, inspecting, record
from tools.install_chromium import find

SESSION = "/s/ses_dff0a5b68ffegK4yUQGH09hey7"
COSTS = "inspector-costs"
PICTURES = (
    ("inspector", f"{SESSION}?at=34", "light", 1280, ".talk > *"),
    ("inspector-timeline", f"{SESSION}/timeline", "dark", 1280, ".map button"),
    ("inspector-search", f"{SESSION}/timeline?q=login", "light", 1280, "#found .hit"),
    ("inspector-files", f"{SESSION}/files", "dark", 1280, ".diff"),
    (COSTS, "/costs?by=project", "light", 1280, ".spent"),
    ("inspector-compare", f"/compare{SESSION[2:]}{SESSION[2:]}?at=20", "light", 1280, ".picture:nth-of-type(2) .lanes"),
    ("inspector-narrow", f"{SESSION}/timeline", "light", 390, ".map button"),
)
"""The name of each, what it shows, its colours and width, and what is there once it is drawn."""


MODELS = (("anthropic", "claude-opus", 0.5), ("openai", "gpt", 0.3), ("mistral", "large", 0.2), ("local", "qwen", 0.05))
TASKS = ("Compare passwords by value", "Draw the map of the shop", "Read the old invoices", "Make the tests quick")


def spent() -> list[StreamEvent]:
    """Sessions of the last 60 days, each with what its turns cost."""
    identity, chance, now = seeded_identity(7), Random(4), int(time.time() * 1000)
    made = []
    for number in range(140):
        session, days = f"ses_{number:05}", chance.random() ** 1.4 * 60
        about = {"stream_id": session, "actor": "build", "source": {"agent": "build", "adapter": "opencode"}}
        provider, model, price = chance.choice(MODELS)
        task, place = chance.choice(TASKS), chance.choice(("shop", "site", "maps"))
        turn = {"message": "m", "turn": "m", "model": {"provider": provider, "model": model}}
        used = {"cost": price * chance.random() * 4, "tokens": {"input": 9000, "output": chance.randrange(900)}}
        events: list[tuple[str, dict[str, Any]]] = [
            ("lifecycle.session.created", {"title": task, "directory": f"/home/ada/{place}"}),
            ("human.input", {**turn, "parts": [{"type": "text", "text": f"{task}."}]}),
            ("turn.started", turn),
            ("execution.step", {**turn, **used, "kind": "inference"}),
            ("turn.ended", {**turn, "outcome": "completed"}),
        ]
        for kind, given in events:
            when = {"ts": now - int(days * 86_400_000), "type": kind}
            made.append(identity.stamp({**about, **when, "payload": {"session": session, **given}}))
    return made


def main(directory: Path) -> None:
    """Write every picture."""
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        home, costs = aside(make_home, Path(place) / "home", *RECORDINGS, DEMO), Path(place) / "costs"
        costs.mkdir(mode=0o700)
        aside(record, costs, spent())
        browser = playwright.chromium.launch(executable_path=find(), args=list(QUIET))
        for name, path, scheme, width, drawn in PICTURES:
            with inspecting(costs if name == COSTS else home) as served:
                page = browser.new_page(viewport={"width": width, "height": 720}, color_scheme=scheme)
                page.goto(served.link)
                page.goto(served.base + path)
                page.wait_for_selector(drawn)
                page.screenshot(path=directory / f"{name}.png")
                page.close()
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parents[1] / "docs")
