"""How much redaction misses and how much it hides needlessly: the figures in ``SECURITY.md``."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bridge.opencode.redact import Redactor
from tests.security.corpus import cases, leaks, values
from tests.security.made_up import clean, pem

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_no_secret_of_the_corpus_is_left_in_a_text(depth: int) -> None:
    assert leaks(depth) == []


def test_no_secret_of_the_corpus_is_left_in_a_value() -> None:
    assert [value for value, secret in values() if secret in json.dumps(clean(value))] == []


def test_security_md_gives_these_figures() -> None:
    told = (ROOT / "SECURITY.md").read_text()
    found = re.search(r"corpus of ([0-9,]+) texts and ([0-9,]+) JSON values", told)
    assert found is not None
    assert [int(figure.replace(",", "")) for figure in found.groups()] == [len(list(cases())), len(list(values()))]


@pytest.mark.parametrize("joint", ['\\n" +\n  "', '\\n"\n "', "\\n', '", '",\n"'])
def test_a_private_key_in_pieces_of_code_is_taken_as_a_whole(joint: str) -> None:
    lines = pem("RSA ").splitlines()
    text = 'key = ("' + joint.join(lines) + '")\nnext = 1'
    for value in (text, json.dumps({"code": text})):
        cleaned = clean({"text": value})["text"]
        assert not any(line in cleaned for line in lines[1:-1])
        assert "next = 1" in cleaned


def test_ordinary_source_loses_next_to_nothing() -> None:
    """Our own sources mention secrets more than most; anything hidden in them is hidden needlessly."""
    redactor, size = Redactor(), 0
    for package in ("streams", "bridge", "sidecar", "tools", "benchmarks", "plugin-shim/src", "docs"):
        for path in (ROOT / package).rglob("*.*"):
            if path.suffix in (".py", ".js", ".md") and "redact" not in path.relative_to(ROOT).parts:
                text = path.read_text()
                size += len(text)
                redactor.clean({"text": text})
    assert size > 1_000_000
    told = re.search(
        r"own sources and docs, redaction hides at most ([0-9]+) texts needlessly", (ROOT / "SECURITY.md").read_text()
    )
    assert told is not None and redactor.redactions <= int(told[1])
