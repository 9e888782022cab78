"""How much redaction misses and how much it hides needlessly: the figures in ``SECURITY.md``."""

from __future__ import annotations

import json
import re
from itertools import islice
from pathlib import Path
from typing import Any

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


def test_redacting_the_corpus_twice_changes_nothing() -> None:
    for case in islice(cases(), 0, None, 23):
        once = clean({"text": case.text})
        assert clean(once) == once, case


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


ORDINARY: list[Any] = [
    {"tokens": {"input": 10, "output": 2}, "max_tokens": 4096, "key": "value", "sessionID": "ses_5b0cAbCdEfGhIjKl"},
    {"auth": {"type": "none"}, "credentials": {"provider": "x"}, "token": 7, "pass": True, "secret": None},
    "class A:\n    token: str\n    password: str | None = None\n    secret: SecretStr\n    auth: Auth\n",
    "def f(password, token=None, auth=None, key=lambda x: x):\n    pass\n",
    "try:\n    pass\nexcept KeyError:\n    pass\n",
    "login(user=user, password=password, token=self.token)",
    "const token = await getToken();\nconst password = input.value;\n",
    "interface A {\n  token: string;\n  password?: string;\n  apiKey: string\n}",
    "for token in tokens:\n    if token == 'x': continue\n    token = next(it)\n",
    "compass = 'north'; bypass=1; passed: 12, failed: 3; passes = 2",
    "export TOKEN=$TOKEN PASSWORD=${PASSWORD} SECRET=$(cat x)",
    "author: somebody\nauthority: nobody\nmonkey: banana\nkeyboard = 'qwerty'",
    "sorted(xs, key=len); {'key': 'value'}; primary_key=True",
    "TOKEN_LIMIT=4096\nPASSWORD_LENGTH=8\nSSH_AUTH_SOCK=/tmp/x1\nSECRET_FILE=/run/x\nPWD=/home/ada\n",
    "msg_a4f3AbCdEfGhIjKlMnOpQrStUv prt_0123456789AbCdEfGhIj per_0123456789AbCdEf",
    "the password is checked, a token expires, and secrets: see the page on auth: it says how",
]


@pytest.mark.parametrize("value", ORDINARY)
def test_ordinary_code_and_text_stays(value: Any) -> None:
    assert clean({"v": value}) == {"v": value}


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
