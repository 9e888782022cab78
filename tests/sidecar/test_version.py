"""Which of two releases is newer: the shim's rule, with the same cases."""

from __future__ import annotations

import json
import re

import pytest

from sidecar.version import VERSION, is_newer
from tests.sidecar.support import REPOSITORY


@pytest.mark.parametrize(
    ("one", "other", "newer"),
    [
        ("0.1.0", "0.1.0", False),
        ("0.1.1", "0.1.0", True),
        ("0.10.0", "0.9.9", True),
        ("1.0.0", "0.99.99", True),
        ("0.1.0", "1.0.0", False),
        ("0.2.0.dev1", "0.1.0", True),
        ("0.1.0-beta", "0.1.0", False),
        ("x", "0.1.0", False),
        ("0.1.0", "", False),
        ("9" * 400 + ".0.0", "0.1.0", False),
    ],
)
def test_a_later_release_is_newer_and_what_is_no_release_is_not(one: str, other: str, newer: bool) -> None:
    assert is_newer(one, other) is newer


def test_shim_and_sidecar_are_of_one_release() -> None:
    """Otherwise the shim would ask its own sidecar to make way."""
    source = (REPOSITORY / "plugin-shim" / "src" / "version.js").read_text()
    assert re.findall(r'SHIM_VERSION = "(.*?)"', source) == [VERSION]
    assert json.loads((REPOSITORY / "plugin-shim" / "package.json").read_text())["version"] == VERSION
