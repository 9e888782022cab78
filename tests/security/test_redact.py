"""Secrets never reach the log: keys anywhere, and values under telling names."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from bridge.opencode.redact import Redactor
from tests.security.made_up import ALNUM, KEYS, PLACES, clean, made_up, pem


class TestKeys:
    @pytest.mark.parametrize("key", KEYS)
    def test_it_is_found_wherever_it_stands(self, key: str) -> None:
        name, secret = KEYS[key]
        for place, form in PLACES.items():
            redactor = Redactor()
            assert redactor.clean(form.format(secret)) == form.format(f"[redacted:{name}]"), place
            assert redactor.redactions == form.format(secret).count(secret), place

    @pytest.mark.parametrize("key", KEYS)
    def test_it_is_found_in_nested_values(self, key: str) -> None:
        name, secret = KEYS[key]
        value = {"output": [{"text": [f"a {secret}", 1, None]}, [secret]], "title": "kept", "n": 1.5}
        label = f"[redacted:{name}]"
        assert clean(value) == {"output": [{"text": [f"a {label}", 1, None]}, [label]], "title": "kept", "n": 1.5}

    @pytest.mark.parametrize("kind", ["", "RSA ", "EC ", "OPENSSH ", "ENCRYPTED ", "DSA "])
    def test_a_private_key_is_taken_as_a_whole(self, kind: str) -> None:
        text = f"cat id\n{pem(kind)}\ndone"
        assert clean(text) == "cat id\n[redacted:private-key]\ndone"
        assert clean(json.dumps({"out": text})) == json.dumps({"out": "cat id\n[redacted:private-key]\ndone"})

    def test_a_private_key_of_pgp_is_taken_too(self) -> None:
        assert clean(pem("PGP ", "PRIVATE " + "KEY BLOCK-----")) == "[redacted:private-key]"

    def test_a_private_key_that_is_cut_short_is_taken_to_the_end(self) -> None:
        assert clean("head\n" + pem()[:200]) == "head\n[redacted:private-key]"

    def test_two_private_keys_are_two(self) -> None:
        assert clean(f"{pem()}\nbetween\n{pem('EC ')}") == "[redacted:private-key]\nbetween\n[redacted:private-key]"

    @pytest.mark.parametrize(
        "text",
        [
            "AWS_SECRET_ACCESS_KEY={}",
            "aws_secret_access_key = {}",
            '"SecretAccessKey": "{}"',
            "secretAccessKey: '{}'",
            '{{\\"SecretAccessKey\\":\\"{}\\"}}',
        ],
    )
    def test_an_aws_secret_is_known_by_its_name(self, text: str) -> None:
        secret = made_up(40, ALNUM + "/+")
        assert secret not in clean(text.format(secret)) and "[redacted:aws-secret]" in clean(text.format(secret))

    @pytest.mark.parametrize("scheme", ["Bearer", "bearer", "Basic", "basic"])
    @pytest.mark.parametrize(
        "text", ["Authorization: {} {}", '"authorization":"{} {}"', "curl -H 'authorization: {} {}'"]
    )
    def test_credentials_of_a_header_in_text(self, scheme: str, text: str) -> None:
        secret = base64.b64encode(b"somebody:some password").decode()
        name = "bearer-token" if scheme.lower() == "bearer" else "basic-auth"
        assert clean(text.format(scheme, secret)) == text.format(scheme, f"[redacted:{name}]")

    @pytest.mark.parametrize(
        ("url", "cleaned"),
        [
            ("postgres://user:pa55word@db:5432/app", "postgres://[redacted:url-password]@db:5432/app"),
            ("redis://:pa55word@cache:6379/0", "redis://[redacted:url-password]@cache:6379/0"),
            ("https://bot:" + "gh" + "p_x@github.com/a/b", "https://[redacted:url-password]@github.com/a/b"),
        ],
    )
    def test_passwords_in_urls(self, url: str, cleaned: str) -> None:
        assert clean(f"connect {url} now") == f"connect {cleaned} now"

    def test_a_slack_webhook(self) -> None:
        url = "https://" + "hooks.slack" + ".com/services/T00000000/B00000000/" + made_up(24)
        assert clean(url) == "https://[redacted:slack-webhook]"

    def test_several_kinds_in_one_dump(self) -> None:
        dump = "\n".join(f"KEY_{n}={secret}" for n, (_, secret) in enumerate(KEYS.values()))
        redactor = Redactor()
        cleaned = redactor.clean(dump)
        assert all(secret not in cleaned for _, secret in KEYS.values())
        assert cleaned.splitlines() == [f"KEY_{n}=[redacted:{name}]" for n, (name, _) in enumerate(KEYS.values())]
        assert redactor.redactions == len(KEYS)


class TestKeyNames:
    @pytest.mark.parametrize(
        "key",
        [
            "authorization",
            "Authorization",
            "proxy-authorization",
            "x-api-key",
            "apiKey",
            "api_key",
            "OPENAI_API_KEY",
            "password",
            "DB_PASSWORD",
            "passwd",
            "secret",
            "client_secret",
            "clientSecret",
            "accessToken",
            "refresh_token",
            "id_token",
            "privateKey",
            "secretAccessKey",
            "AWS_SECRET_ACCESS_KEY",
            "cookie",
            "Set-Cookie",
        ],
    )
    def test_values_under_secret_names_go_whole(self, key: str) -> None:
        redactor = Redactor()
        assert redactor.clean({"headers": {key: "anything", "accept": "*/*"}}) == {
            "headers": {key: "[redacted:value]", "accept": "*/*"}
        }
        assert redactor.redactions == 1
        assert redactor.clean({key: ["one", "two"]}) == {key: ["[redacted:value]", "[redacted:value]"]}

    @pytest.mark.parametrize("value", ["", None, 5, True, [], {}, {"input": 5, "output": 7}])
    def test_what_is_no_secret_under_such_a_name_stays(self, value: Any) -> None:
        given = {"password": value, "secret": value}
        assert clean(given) is given

    def test_an_object_under_a_secret_name_is_cleaned_as_any_other(self) -> None:
        given = {"authorization": {"type": "bearer", "password": "x", "list": [1, "y"]}}
        assert clean(given) == {"authorization": {"type": "bearer", "password": "[redacted:value]", "list": [1, "y"]}}

    @pytest.mark.parametrize(
        "key", ["tokens", "token_count", "keys", "secrets_found", "cookies", "passwords", "author"]
    )
    def test_names_that_only_sound_alike_stay(self, key: str) -> None:
        given = {key: "a value"}
        assert clean(given) is given


class TestNames:
    def test_a_secret_that_is_a_name_is_taken_out_and_its_value_stays(self) -> None:
        (_, one), (_, two) = KEYS["github"], KEYS["github oauth"]
        value = {one: 1, "plain": {two: [2], one: 3, "[redacted:github-token]": 4}}
        label = "[redacted:github-token]"
        cleaned = clean(value)
        assert cleaned == {label: 1, "plain": {f"{label}'": [2], f"{label}''": 3, label: 4}}
        assert clean(cleaned) is cleaned

    @pytest.mark.parametrize("key", ["token", "SESSION_TOKEN", "sessionToken"])
    def test_a_value_drawn_at_random_under_a_telling_name_goes(self, key: str) -> None:
        assert clean({"a": {key: made_up(32)}}) == {"a": {key: "[redacted:value]"}}


class TestPlaceholders:
    @pytest.mark.parametrize("key", KEYS)
    def test_a_secret_dressed_up_as_a_placeholder_is_found(self, key: str) -> None:
        name, secret = KEYS[key]
        assert clean([f"[redacted:{secret}]"]) == [f"[redacted:[redacted:{name}]]"]
        assert clean({"password": f"[redacted:{secret}]"}) == {"password": "[redacted:value]"}
        assert clean({"password": "[redacted:value]"}) == {"password": "[redacted:value]"}


class TestInToolOutput:
    """Tool output is JSON in a string, often nested."""

    @pytest.mark.parametrize("depth", [1, 2, 3])
    @pytest.mark.parametrize("key", ["password", "api_key", "clientSecret", "DB_PASSWORD"])
    def test_a_named_secret_is_found_in_json_in_json(self, key: str, depth: int) -> None:
        for secret in ("letmein", "hunter2hunter2", made_up(24)):
            text = json.dumps({"user": "ada", key: secret, "n": 1}, indent=1)
            for _ in range(depth - 1):
                text = json.dumps({"stdout": text})
            cleaned = clean({"output": text})["output"]
            assert secret not in cleaned and "ada" in cleaned
            for _ in range(depth - 1):
                cleaned = json.loads(cleaned)["stdout"]
            assert json.loads(cleaned) == {"user": "ada", key: "[redacted:secret]", "n": 1}

    def test_the_same_input_gives_the_same_output(self) -> None:
        value = {"texts": [place.format(secret) for place in PLACES.values() for _, secret in KEYS.values()]}
        first = json.dumps(Redactor().clean(value))
        assert first == json.dumps(Redactor().clean(json.loads(json.dumps(value)))) == json.dumps(clean(value))


ASSIGNED = ("s3cret" + "Env77", "hunter2" + "hunter", "abc123" + "def456")


@pytest.mark.parametrize(
    "form",
    [
        "DB_PASSWORD={} and more",
        "export API_KEY='{}'",
        "password = {}",
        '{{"password": "{}"}}',
        '{{\\"api_key\\": \\"{}\\"}}',
        "authToken: {}",
        "AUTH_TOKEN={}",
    ],
)
@pytest.mark.parametrize("value", ASSIGNED)
def test_a_secret_assigned_to_a_telling_name_in_text_is_redacted(form: str, value: str) -> None:
    cleaned = Redactor().clean({"text": form.format(value)})
    assert value not in cleaned["text"] and "[redacted:secret" in cleaned["text"]
    assert cleaned["text"].split("[redacted")[0] == form.split("{}")[0].replace("{{", "{"), "the name stays"
    assert Redactor().clean(cleaned) == cleaned
