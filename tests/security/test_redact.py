"""Secrets never reach the log: keys anywhere, and values under telling names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bridge.opencode.redact import Redactor
from tests.security.made_up import KEYS, PLACES, clean, pem


class TestKeys:
    @pytest.mark.parametrize("key", KEYS)
    def test_it_is_found_wherever_it_stands(self, key: str) -> None:
        name, secret = KEYS[key]
        for place, form in PLACES.items():
            redactor = Redactor()
            assert redactor.clean(form.format(secret)) == form.format(f"[redacted:{name}]"), place
            assert redactor.redactions == form.format(secret).count(secret), place

    @pytest.mark.parametrize("kind", ["", "RSA ", "EC ", "OPENSSH ", "ENCRYPTED ", "DSA "])
    def test_a_private_key_is_taken_as_a_whole(self, kind: str) -> None:
        text = f"cat id\n{pem(kind)}\ndone"
        assert clean(text) == "cat id\n[redacted:private-key]\ndone"
        assert clean(json.dumps({"out": text})) == json.dumps({"out": "cat id\n[redacted:private-key]\ndone"})

    def test_a_private_key_that_is_cut_short_is_taken_to_the_end(self) -> None:
        assert clean("head\n" + pem()[:200]) == "head\n[redacted:private-key]"


class TestKeyNames:
    def test_values_under_secret_names_go_whole(self) -> None:
        for key in (
            *(
                "authorization",
                "Authorization",
                "proxy-authorization",
                "x-api-key",
                "apiKey",
                "api_key",
                "OPENAI_API_KEY",
            ),
            *(
                "password",
                "DB_PASSWORD",
                "passwd",
                "secret",
                "client_secret",
                "clientSecret",
                "accessToken",
                "id_token",
            ),
            *("refresh_token", "privateKey", "secretAccessKey", "AWS_SECRET_ACCESS_KEY", "cookie", "Set-Cookie"),
        ):
            redactor = Redactor()
            assert redactor.clean({"headers": {key: "anything", "accept": "*/*"}}) == {
                "headers": {key: "[redacted:value]", "accept": "*/*"}
            }
            assert redactor.redactions == 1
            assert redactor.clean({key: ["one", "two"]}) == {key: ["[redacted:value]", "[redacted:value]"]}

    def test_names_that_only_sound_alike_stay(self) -> None:
        for key in ("tokens", "token_count", "keys", "secrets_found", "cookies", "passwords", "author"):
            given = {key: "a value"}
            assert clean(given) is given

    @pytest.mark.parametrize("value", ["", None, 5, True, [], {}, {"input": 5, "output": 7}])
    def test_what_is_no_secret_under_such_a_name_stays(self, value: Any) -> None:
        given = {"password": value, "secret": value}
        assert clean(given) is given

    def test_an_object_under_a_secret_name_is_cleaned_as_any_other(self) -> None:
        given = {"authorization": {"type": "bearer", "password": "x", "list": [1, "y"]}}
        assert clean(given) == {"authorization": {"type": "bearer", "password": "[redacted:value]", "list": [1, "y"]}}


class TestNames:
    def test_a_secret_that_is_a_name_is_taken_out_and_its_value_stays(self) -> None:
        (_, one), (_, two) = KEYS["github"], KEYS["github oauth"]
        value = {one: 1, "plain": {two: [2], one: 3, "[redacted:github-token]": 4}}
        label = "[redacted:github-token]"
        cleaned = clean(value)
        assert cleaned == {label: 1, "plain": {f"{label}'": [2], f"{label}''": 3, label: 4}}
        assert clean(cleaned) is cleaned


class TestPlaceholders:
    @pytest.mark.parametrize("key", KEYS)
    def test_a_secret_dressed_up_as_a_placeholder_is_found(self, key: str) -> None:
        name, secret = KEYS[key]
        assert clean([f"[redacted:{secret}]"]) == [f"[redacted:[redacted:{name}]]"]
        assert clean({"password": f"[redacted:{secret}]"}) == {"password": "[redacted:value]"}
        assert clean({"password": "[redacted:value]"}) == {"password": "[redacted:value]"}
