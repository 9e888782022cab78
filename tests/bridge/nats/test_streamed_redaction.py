"""Redaction of text in pieces: wherever a secret is split, no part of it gets out."""

from __future__ import annotations

from itertools import chain, combinations, islice

import pytest

from bridge.nats.mirror.streamed_redaction import MAX_CONTEXT, MAX_WORD, PiecedText
from bridge.opencode.redact import Redactor
from tests.security.made_up import KEYS, pem

GITHUB = KEYS["github"][1]
SAID = {
    "a token": (f"Use {GITHUB} for it.\n", [GITHUB[4:]]),
    "a telling name": ("The line is DB_PASS=letmein and\n", ["letmein"]),
    "a value behind a space": ("password: hunter2hunter\nnext\n", ["hunter2hunter"]),
    "a header": ("curl -H 'Authorization: Bearer correcthorse' x\n", ["correcthorse"]),
    "JSON": ('{"user": "ada", "password": "letmein", "n": 1}\n', ["letmein"]),
    "words in quotes": ("password = 'kitten puppy pony'\nnext\n", ["kitten", "puppy", "pony"]),
    "a pair in lines": ('{\n "name": "DB_PASSWORD",\n "value": "letmein"\n}\n', ["letmein"]),
    "an address": ("connect to mysql://root:p@zebrafish@db.test/app now\n", ["zebrafish"]),
}


def spoken(pieces: list[str]) -> str:
    pieced = PiecedText(Redactor().clean)
    return "".join([pieced.add(piece) for piece in pieces] + [pieced.end()])


def cut(text: str, places: tuple[int, ...]) -> list[str]:
    return [text[start:end] for start, end in zip((0, *places), (*places, len(text)), strict=True)]


@pytest.mark.parametrize("kind", SAID)
def test_wherever_it_is_cut_into_two_and_three_no_secret_leaves(kind: str) -> None:
    """Into two at every place, into three at every seventh pair of places."""
    text, secrets = SAID[kind]
    places = range(1, len(text))
    for chosen in chain(combinations(places, 1), islice(combinations(places, 2), 0, None, 7)):
        said = spoken(cut(text, chosen))
        assert "[redacted:" in said and not any(secret in said for secret in secrets), (chosen, said)


@pytest.mark.parametrize("kind", SAID)
def test_letter_by_letter_no_piece_of_a_secret_leaves(kind: str) -> None:
    text, secrets = SAID[kind]
    said = spoken(list(text))
    assert not any(secret[:4] in said for secret in secrets)
    assert said.split("[redacted:")[0] == Redactor().clean(text).split("[redacted:")[0]


def test_no_line_of_a_private_key_leaves() -> None:
    text = f"Here it is:\n{pem('RSA ')}\nand no more.\n"
    for size in (1, 7, 64):
        said = spoken([text[at : at + size] for at in range(0, len(text), size)])
        assert not any(line in said for line in pem("RSA ").splitlines()[1:-1])
        assert said.startswith("Here it is:\n") and said.endswith("and no more.\n")


def test_ordinary_text_arrives_as_it_is() -> None:
    text = "One word after the other, a line\nand another: x = f(y)\n" * 200 + "the end"
    for size in (1, 5, 1000):
        assert spoken([text[at : at + size] for at in range(0, len(text), size)]) == text


def test_what_is_complete_does_not_wait() -> None:
    text = PiecedText(Redactor().clean)
    assert [text.add("one two"), text.add(" thr"), text.add("ee\n"), text.end()] == [
        "one ",
        "two ",
        "three\n",
        "",
    ]


def test_after_a_pause_in_a_secret_the_rest_of_it_does_not_leave() -> None:
    pieced = PiecedText(Redactor().clean)
    said = pieced.add("DB_PASS=") + pieced.end() + pieced.add("correct") + pieced.add("horse\n")
    assert "correct" not in said and "horse" not in said


def test_a_word_without_end_is_replaced() -> None:
    pieced = PiecedText(Redactor().clean)
    said = "".join(pieced.add("q" * 1000) for _ in range(50)) + pieced.add("qz\nnext ")
    assert "q" not in said and said.endswith("\nnext ")
    assert len(pieced._said) <= MAX_CONTEXT and len(pieced._word) <= MAX_WORD
