"""Redaction as configured: added patterns and names, allowed values, disabled rules."""

from __future__ import annotations

import json
import re

import pytest

from bridge.opencode.redact import MAX_STRING, Redactor
from tests.security.made_up import KEYS, clean


class TestOptions:
    def test_extra_patterns_are_tried_on_every_string(self) -> None:
        redactor = Redactor({"ticket": r"ACME-\d+", "pin": r"\b\d{4}\b"})
        assert redactor.clean(["see ACME-12", "1234", "12345"]) == ["see [redacted:ticket]", "[redacted:pin]", "12345"]
        assert redactor.redactions == 2

    def test_a_bad_pattern_is_told_at_once(self) -> None:
        with pytest.raises(re.error):
            Redactor({"bad": "("})

    def test_extra_key_names_are_compared_without_case_and_hyphens(self) -> None:
        given = {"licence_key": "x", "Licence-Key": "y", "licencekeys": "z"}
        assert clean(given, keys=["LicenceKey"]) == {
            "licence_key": "[redacted:value]",
            "Licence-Key": "[redacted:value]",
            "licencekeys": "z",
        }

    def test_disabled_it_only_shortens(self) -> None:
        redactor = Redactor({"extra": "text"}, ["key"], enabled=False)
        value = {"password": "text", "key": ["text"], "secret": KEYS["openai"][1]}
        assert redactor.clean(value) is value
        assert redactor.clean("x" * (MAX_STRING + 1))["bytes"] == MAX_STRING + 1
        assert (redactor.redactions, redactor.shortened) == (0, 1)

    def test_a_pattern_that_matches_its_own_placeholder_comes_to_an_end(self) -> None:
        assert clean("a secret", extra={"x": "redacted|secret"}) == "a [redacted:x]"

    def test_a_text_named_in_the_configuration_is_found_in_any_case_of_escaping(self) -> None:
        secret = 'pa"ss\\wo\nrd é'
        value = {"a": f"see {secret}.", "b": json.dumps({"c": secret}, ensure_ascii=False), secret: 1}
        redactor = Redactor(literals={"mine": secret})
        assert redactor.clean(value) == {
            "a": "see [redacted:mine].",
            "b": '{"c": "[redacted:mine]"}',
            "[redacted:mine]": 1,
        }
        assert Redactor(literals={"mine": secret}).clean({"a": "see passwo"}) == {"a": "see passwo"}

    def test_a_rule_can_be_left_out(self) -> None:
        name, secret = KEYS["github"]
        assert clean(f"x {secret}", disable=[name]) == f"x {secret}"
        assert clean(KEYS["npm"][1], disable=[name]) == "[redacted:npm-token]"
        with pytest.raises(ValueError, match="no rule is named nothing"):
            Redactor(disable=["nothing"])

    def test_what_is_allowed_stays_if_it_is_allowed_as_a_whole(self) -> None:
        secret = KEYS["github"][1]
        assert clean(f"x {secret}", allow=[re.escape(secret)]) == f"x {secret}"
        assert clean(f"x {secret}", allow=[re.escape(secret[:-1])]) == "x [redacted:github-token]"
        assert clean("password=example99", allow=["example[0-9]*"]) == "password=example99"
