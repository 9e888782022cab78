"""Each page of the inspector, in light and dark, with what axe finds wrong for people who see or point differently."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Page

from tests.sidecar.inspector.conftest import Served

AXE = Path(__file__).parents[3] / "plugin-shim" / "node_modules" / "axe-core" / "axe.min.js"
ROOT = "ses_dff0a5b68ffegK4yUQGH09hey7"

SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
SEEN = "() => axe.run({resultTypes: ['violations']}).then(found => found.violations)"
PAGES = {
    "/": ".row",
    "/?q=login": ".hit",
    "/?q=nothing+has+this": ".empty",
    f"/s/{ROOT}": ".talk > *",
    f"/s/{ROOT}?at=14": ".past",
    f"/s/{ROOT}/timeline": ".lanes",
    f"/s/{ROOT}/files": ".diff",
    f"/s/{ROOT}/events": ".events tr",
    "/work": ".page",
    "/costs": ".sums",
    "/health": "#main dl",
    "/nope": "#main h1",
    f"/compare/{ROOT}": ".sums",
    f"/compare/{ROOT}/ses_dff2906baffeAePlLpyxcsvWdu": ".sums",
}
"""Each page, and what it has once it is drawn."""


def faults(page: Page) -> list[str]:
    """The serious and the critical violations on a page in both colour schemes, each with the elements that have it."""
    found: list[dict[str, Any]] = []
    page.evaluate(AXE.read_text())
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        found += page.evaluate(SEEN)
    return [
        f"{each['id']}: {node['html'][:160]} {node['failureSummary'][:200]}"
        for each in found
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"][:4]
    ]


@pytest.mark.parametrize("path", PAGES)
def test_no_page_has_a_serious_fault(page: Page, served: Served, path: str) -> None:
    page.goto(served.base + path)
    page.wait_for_selector(PAGES[path])
    assert faults(page) == []


def test_an_open_detail_and_the_list_of_keys_have_no_serious_fault(page: Page, served: Served) -> None:
    page.goto(f"{served.base}/s/{ROOT}/events")
    page.locator(".events tr").nth(5).click()
    page.wait_for_selector(".detail h3")
    assert faults(page) == []
    page.get_by_text("Why?").click()
    page.wait_for_selector(".chain li.this")
    assert faults(page) == []
    page.keyboard.press("?")
    page.wait_for_selector("#keys[open]")
    assert faults(page) == []
