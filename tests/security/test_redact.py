"""Secrets never reach the log (FEATURES U15). All keys here are made up, and put together so that no scanner trips."""

from __future__ import annotations

import base64
import json
import re
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.opencode.redact import KEPT_OF_LONG, MAX_STRING, Redactor
from bridge.opencode.redact.rules import built_in
from streams.hashing import MAX_DEPTH
from tests.security.drawn import drawn

ROOT = Path(__file__).parents[2]

_ALNUM = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


def made_up(length: int, alphabet: str = _ALNUM, seed: int = 7) -> str:
    """Random characters, a capital and a digit among the first."""
    random = Random(seed)
    return "Q7" * (alphabet is _ALNUM) + "".join(
        random.choice(alphabet) for _ in range(length - 2 * (alphabet is _ALNUM))
    )


HEX = "0123456789abcdef"
UPPER = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
URLSAFE = _ALNUM + "-_"


def _jwt() -> str:
    parts = [{"alg": "HS256", "typ": "JWT"}, {"sub": "1234567890", "name": "Nobody"}]
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join([*encoded, made_up(43)])


KEYS: dict[str, tuple[str, str]] = {
    "anthropic": ("anthropic-key", "sk-" + "ant-api03-" + made_up(93, URLSAFE) + "-" + made_up(6) + "AA"),
    "openai": ("openai-key", "sk-" + made_up(20) + "T3Blbk" + "FJ" + made_up(20)),
    "openai project": ("openai-key", "sk-" + "proj-" + made_up(70, URLSAFE) + "9Zz" + made_up(40)),
    "openai service": ("openai-key", "sk-" + "svcacct-" + made_up(60)),
    "openrouter": ("openai-key", "sk-" + "or-v1-" + made_up(64, HEX)),
    "deepseek": ("openai-key", "sk-" + made_up(32, HEX)),
    "github": ("github-token", "gh" + "p_" + made_up(36)),
    "github oauth": ("github-token", "gh" + "o_" + made_up(36)),
    "github server": ("github-token", "gh" + "s_" + made_up(36)),
    "github fine": ("github-token", "github" + "_pat_" + made_up(22) + "_" + made_up(59)),
    "gitlab": ("gitlab-token", "gl" + "pat-" + made_up(20)),
    "aws id": ("aws-key-id", "AK" + "IA" + made_up(16, UPPER)),
    "aws session id": ("aws-key-id", "AS" + "IA" + made_up(16, UPPER)),
    "google": ("google-key", "AI" + "za" + made_up(35, URLSAFE)),
    "google oauth": ("google-oauth", "ya" + "29." + made_up(80, URLSAFE)),
    "slack bot": ("slack-token", "xo" + "xb-123456789012-1234567890123-" + made_up(24)),
    "slack app": ("slack-token", "xa" + "pp-1-A0123456789-1234567890123-" + made_up(64, HEX)),
    "stripe": ("stripe-key", "sk" + "_live_" + made_up(24)),
    "stripe restricted": ("stripe-key", "rk" + "_live_" + made_up(24)),
    "stripe webhook": ("stripe-key", "wh" + "sec_" + made_up(32)),
    "hugging face": ("huggingface-token", "h" + "f_" + made_up(34)),
    "npm": ("npm-token", "np" + "m_" + made_up(36)),
    "pypi": ("pypi-token", "py" + "pi-AgEIcHlwaS5vcmc" + made_up(120, URLSAFE)),
    "sendgrid": ("sendgrid-key", "S" + "G." + made_up(22) + "." + made_up(43)),
    "jwt": ("jwt", _jwt()),
}

PLACES: dict[str, str] = {
    "alone": "{}",
    "in a sentence": "Use the key {}, and tell nobody.",
    "in an environment": "HOME=/root\nSOME_API_KEY={}\nPATH=/bin",
    "exported": "export SOME_TOKEN='{}'; run",
    "in a curl": "curl -H 'X-Thing: {}' https://example.test/",
    "in JSON in text": '{{"key":"{}","n":1}}',
    "after an escaped newline": '"out":"FOO=1\\n{}\\nBAR=2"',
    "after an escaped tab": "a\\t{}\\r\\n",
    "after an escaped character": "a\\u000a{}\\u000a",
    "in a URL": "https://example.test/?a=1&key={}&b=2",
    "after a percent escape": "next%3D{}%26b",
    "in colour": "\x1b[32m{}\x1b[0m",
    "in bold colour": "\x1b[1;31m{}\x1b[0m",
    "in escaped colour": "\\u001b[0m{}\\u001b[0m",
    "with line numbers": "00001| a\n00002| {}\n00003| b",
    "in YAML": "key: {}\nother: 1",
    "in a diff": "-old\n+{}\n",
    "in brackets": "[{}]",
    "quoted twice": '"{{\\"key\\":\\"{}\\"}}"',
    "after an underscore": "value_{}",
    "twice": "{0} {0}",
}

PEM_BODY = "\n".join(made_up(64, _ALNUM + "+/", seed) for seed in range(5))


def pem(kind: str = "RSA ", end: str = "PRIVATE " + "KEY-----") -> str:
    return f"-----BEGIN {kind}{end}\n{PEM_BODY}\n-----END {kind}{end}"


def clean(value: Any, **more: Any) -> Any:
    return Redactor(**more).clean(value)


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> int:
    """A lower limit for strings, where the real one only takes time."""
    monkeypatch.setattr("bridge.opencode.redact.MAX_STRING", 2 * KEPT_OF_LONG)
    return 2 * KEPT_OF_LONG


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
        secret = made_up(40, _ALNUM + "/+")
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


ORDINARY = {
    "scikit-learn": "pip install sk-learn; import sklearn; sk-learn-contrib-some-long-package-name",
    "css": "class='sk-fading-circle sk-circle-fade-dot sk-cube-grid-with-a-long-name sk-circle12-before-and-after'",
    "hyphens": "a risk-based-approach-to-something-quite-long1A, task-1234567890abcdefABCDEF, desk-" + made_up(30),
    "git sha": "commit 3f2a9c1d0b8e7f6a5c4d3e2f1a0b9c8d7e6f5a4b\n" + made_up(64, HEX),
    "uuid": "550e8400-e29b-41d4-a716-446655440000",
    "ulid": "01HF7YAT0072TECMQ49PKZ57H0",
    "session ids": "ses_5b0cAbCdEfGhIjKlMnOpQrStUv msg_a4f3AbCdEfGhIjKlMnOpQrStUv prt_0123456789AbCdEfGhIj",
    "bearer": "the bearer responsibilities and the standard bearer characteristics.of.something",
    "basic": "Visual Basic internationalization, a basic misunderstanding, Basic authentication",
    "urls": "https://example.test:8080/a@b?c=d://e http://[::1]:8080/ git@github.com:a/b.git mailto:a@b.test",
    "words": "npm_config_registry hf_transfer pypi-server ghp_short AKIA AKIAlower glpat- xoxb- whsec_ SG.a.b eyJ",
    "certificate": "-----BEGIN CERTIFICATE-----\n" + PEM_BODY + "\n-----END CERTIFICATE-----",
    "public key": "-----BEGIN PUBLIC KEY-----\n" + PEM_BODY + "\n-----END PUBLIC KEY-----",
    "lockfile": '"integrity": "sha512-' + base64.b64encode(bytes(Random(1).randbytes(64))).decode() + '"',
    "lockfile hashes": "pytest==9.0 --hash=sha256:" + made_up(64, HEX) + " # sha1-" + made_up(28) + "=",
    "etag": 'etag: W/"' + made_up(40, HEX) + '" x-request-id: 550e8400-e29b-41d4-a716-446655440000',
    "minified": "!function(e,t){var n=e.token,r=t.key;n=r.secret||i.password;return n?o(n):u(r)}(this,function(){});",
    "environment": "PWD=/home/user1/project2\nOLDPWD=/tmp/x1\nSSH_AUTH_SOCK=/tmp/ssh-x1/agent.1\nTERM=xterm-256color",
    "stack": "at /usr/lib/node_modules/x1/token.js:123:45 in getToken (secret.ts:9)",
    "redacted": "[redacted:openai-key] [redacted:value]",
    "unicode": "naïve 中文 😀 \ud800",
}


class TestOrdinaryText:
    @pytest.mark.parametrize("kind", ORDINARY)
    def test_it_stays(self, kind: str) -> None:
        redactor = Redactor()
        text = ORDINARY[kind]
        assert redactor.clean(text) == text
        assert redactor.clean([text])[0] is text
        assert redactor.redactions == 0

    def test_an_image_stays(self) -> None:
        image = "data:image/png;base64," + base64.b64encode(Random(3).randbytes(600_000)).decode()
        assert clean(image) == image

    def test_usage_stays(self) -> None:
        usage = {"tokens": {"input": 1, "output": 2, "reasoning": 0, "cache": {"read": 3, "write": 4}}, "cost": 0.1}
        assert clean(usage) is usage

    def test_what_has_no_secret_is_the_same_object(self) -> None:
        value = {"a": [1, "two", {"b": None}], "c": "text " * 100}
        assert clean(value) is value


class TestOptions:
    def test_extra_patterns_are_tried_on_every_string(self) -> None:
        redactor = Redactor({"ticket": r"ACME-\d+", "pin": r"\b\d{4}\b"})
        assert redactor.clean(["see ACME-12", "1234", "12345"]) == ["see [redacted:ticket]", "[redacted:pin]", "12345"]
        assert redactor.redactions == 2

    def test_a_name_is_taken_as_it_is(self) -> None:
        assert clean("a secret", extra={r"odd\1\g<0>": "secret"}) == r"a [redacted:odd\1\g<0>]"

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

    def test_own_keys_cost_no_closer_look_at_others(self) -> None:
        given = {"a": [{"b": "text"}], "pin_code": "x"}
        assert clean(given, keys=["pin"]) is given
        assert clean({"a": [{"P-I-N_": "x"}]}, keys=["pin"]) == {"a": [{"P-I-N_": "[redacted:value]"}]}


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
        assert clean({"a": {key: made_up(32)}}) == {"a": {key: "[redacted:token]"}}
        assert clean({key: "a name of a token"}) == {key: "a name of a token"}


class TestPlaceholders:
    @pytest.mark.parametrize("key", KEYS)
    def test_a_secret_dressed_up_as_a_placeholder_is_found(self, key: str) -> None:
        name, secret = KEYS[key]
        assert clean([f"[redacted:{secret}]"]) == [f"[redacted:[redacted:{name}]]"]
        assert clean({"password": f"[redacted:{secret}]"}) == {"password": "[redacted:value]"}
        assert clean({"password": "[redacted:value]"}) == {"password": "[redacted:value]"}


class TestInToolOutput:
    """What a tool prints is JSON in a string, often more than once."""

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


class TestWhatIsShipped:
    def test_the_demo_and_the_recordings_hold_no_secret(self) -> None:
        """Real sessions: what would be taken out of them is taken by mistake."""
        paths = [*(ROOT / "tests" / "recordings").glob("*.jsonl"), ROOT / "sidecar" / "recordings" / "demo.jsonl"]
        assert len(paths) > 60
        redactor = Redactor()
        for path in paths:
            for line in path.read_text().splitlines():
                item = json.loads(line)
                assert redactor.clean(item) is item, path.name

    def test_ordinary_code_is_left_alone(self) -> None:
        for path in [p for package in ("streams", "bridge", "sidecar", "docs") for p in (ROOT / package).rglob("*.*")]:
            if path.suffix in (".py", ".md", ".json") and "redact" not in path.parts:
                text = path.read_text()
                assert clean(text) == text, path


class TestSize:
    def test_a_string_over_the_limit_becomes_digest_size_and_beginning(self) -> None:
        text = "é" + "x" * MAX_STRING
        redactor = Redactor()
        data = text.encode()
        assert redactor.clean({"output": text, "short": "y"}) == {
            "output": {"$sha256": sha256(data).hexdigest(), "bytes": len(data), "beginning": text[:KEPT_OF_LONG]},
            "short": "y",
        }
        assert redactor.shortened == 1

    def test_a_string_at_the_limit_is_kept(self) -> None:
        text = "x" * MAX_STRING
        assert clean(text) is text

    def test_a_secret_in_the_beginning_of_a_long_string_is_not_kept(self, limit: int) -> None:
        name, secret = KEYS["github"]
        kept = clean(secret + " " + "x" * limit)
        assert kept["beginning"].startswith(f"[redacted:{name}] xxx") and len(kept["beginning"]) == KEPT_OF_LONG

    def test_a_lone_surrogate_in_a_long_string_is_no_obstacle(self, limit: int) -> None:
        assert clean("\ud800" + "x" * limit)["bytes"] == limit + 1

    @pytest.mark.parametrize("wrap", [lambda v: [v], lambda v: {"d": v}])
    @pytest.mark.parametrize("depth", [MAX_DEPTH - 1, MAX_DEPTH, MAX_DEPTH + 1, 1000])
    def test_what_nests_too_deep_is_cut_and_never_stops_the_sidecar(self, wrap: Any, depth: int) -> None:
        """Readers of JSON take 1024 levels, more than Python can descend."""
        value: Any = KEYS["github"][1]
        for _ in range(depth):
            value = wrap(value)
        redactor = Redactor()
        cleaned = redactor.clean(value)
        assert redactor.shortened == (depth > MAX_DEPTH)
        for _ in range(min(depth, MAX_DEPTH)):
            cleaned = cleaned[0] if isinstance(cleaned, list) else cleaned["d"]
        kept = "[redacted:github-token]"
        assert cleaned == (kept if depth <= MAX_DEPTH else {"$too_deep": type(value).__name__})

    @pytest.mark.parametrize(
        "text", ["sk-" * 70_000, "Bearer " * 40_000, "://" * 70_000 + "a:", "sk-" + "a-" * 100_000]
    )
    def test_hostile_text_takes_no_quadratic_time(self, text: str) -> None:
        """Quadratic, these would take hours."""
        assert clean(text) == text


class TestTwice:
    def test_redacting_twice_changes_nothing(self, limit: int) -> None:
        value = {
            "password": "x",
            "set-cookie": ["a=b", "c=d"],
            "texts": [place.format(secret) for place in PLACES.values() for _, secret in KEYS.values()],
            "pem": pem(),
            "url": "postgres://user:pa55word@db/",
            "header": "Authorization: Bearer " + made_up(30),
            "aws": "AWS_SECRET_ACCESS_KEY=" + made_up(40),
            "long": "x" * (limit + 1),
        }
        first = clean(value)
        assert first != value
        stored = json.loads(json.dumps(first))
        second = Redactor()
        assert second.clean(stored) is stored
        assert (second.redactions, second.shortened) == (0, 0)


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
    assert value not in cleaned["text"] and "[redacted:secret]" in cleaned["text"]
    assert cleaned["text"].split("[redacted")[0] == form.split("{}")[0].replace("{{", "{"), "the name stays"
    assert Redactor().clean(cleaned) == cleaned


@pytest.mark.parametrize(
    "text",
    [
        "def check(name, password, users): return users.get(name) == password",
        "password: str = None",
        "secret = os.environ['SECRET']",
        "password = get_password(user1)",
        "max_tokens=4000000000",
        "passwordLength = 12345678",
        "apiKey: process.env.KEY",
    ],
)
def test_code_about_secrets_is_not_redacted(text: str) -> None:
    assert Redactor().clean({"text": text}) == {"text": text}


# --- for any text made of pieces of secrets and of what stands around them ---

_FRAGMENTS = [drawn(form, seed) for rule in built_in() for form in rule.examples for seed in (1, 2)]
_AROUND = [
    *("\n", "\t", " ", '"', "'", "\\", "\\n", '\\"', ":", "=", ": ", "{", "}", ",", "[redacted:jwt]", "[redacted:"),
    *("é", "\U0001f600", "\x1b[0m", "%20", "password", "token", "key", "secret", "api_key", "Bearer ", "a", "7", "-"),
]
TEXTS = st.lists(
    st.one_of(
        st.sampled_from(_AROUND),
        st.sampled_from(_FRAGMENTS),
        st.builds(lambda text, end: text[:end], st.sampled_from(_FRAGMENTS), st.integers(0, 60)),
    ),
    max_size=8,
).map("".join)
VALUES = st.one_of(TEXTS, st.lists(TEXTS, max_size=3), st.dictionaries(TEXTS, TEXTS, max_size=3), TEXTS.map(json.dumps))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(VALUES)
def test_the_quick_look_at_the_whole_misses_nothing(value: Any) -> None:
    one, other = Redactor(), Redactor()
    assert one.clean({"v": value}) == {"v": other._clean(value, 0)}
    assert one.redactions == other.redactions


@settings(max_examples=300, deadline=None, derandomize=True)
@given(VALUES)
def test_a_second_redaction_changes_nothing(value: Any) -> None:
    first = clean({"v": value})
    assert clean(first) == first
