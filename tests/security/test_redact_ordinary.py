"""Redaction leaves ordinary text alone."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from random import Random

import pytest

from bridge.opencode.redact import Redactor
from tests.security.made_up import HEX, PEM_BODY, clean, made_up

ROOT = Path(__file__).parents[2]
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
    "Python": "class A:\n    token: str\n    password: str | None = None\n    secret: SecretStr\n    auth: Auth\n"
    "def f(password, token=None, auth=None, key=lambda x: x):\n    pass\ntry:\n    pass\nexcept KeyError:\n    pass\n"
    "def check(name, password, users): return users.get(name) == password\nsecret = os.environ['SECRET']\n"
    "login(user=user, password=password, token=self.token)\npassword = get_password(user1)\nsorted(xs, key=len)\n"
    "for token in tokens:\n    if token == 'x': continue\n    token = next(it)\n{'key': 'value'}; primary_key=True",
    "JavaScript": "const token = await getToken();\nconst password = input.value;\napiKey: process.env.KEY\n"
    "interface A {\n  token: string;\n  password?: string;\n  apiKey: string\n}",
    "words that only sound alike": "compass = 'north'; bypass=1; passed: 12, failed: 3; passes = 2\nauthor: somebody\n"
    "authority: nobody\nmonkey: banana\nkeyboard = 'qwerty'\nmax_tokens=4000000000\npasswordLength = 12345678",
    "references": "export TOKEN=$TOKEN PASSWORD=${PASSWORD} SECRET=$(cat x)",
    "settings": "TOKEN_LIMIT=4096\nPASSWORD_LENGTH=8\nSECRET_FILE=/run/x\nPWD=/home/ada\n",
    "prose": "the password is checked, a token expires, and secrets: see the page on auth: it says how",
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

    def test_usage_and_what_is_no_secret_under_a_telling_name_stay(self) -> None:
        usage = {"tokens": {"input": 1, "output": 2, "reasoning": 0, "cache": {"read": 3, "write": 4}}, "cost": 0.1}
        names = {"auth": {"type": "none"}, "credentials": {"provider": "x"}, "token": 7, "pass": True, "secret": None}
        assert clean(usage) is usage and clean(names) is names

    def test_what_has_no_secret_is_the_same_object(self) -> None:
        value = {"a": [1, "two", {"b": None}], "c": "text " * 100}
        assert clean(value) is value


class TestWhatIsShipped:
    def test_the_demo_and_the_recordings_hold_no_secret(self) -> None:
        """These are real sessions without secrets, so any redaction in them is a mistake."""
        paths = [
            *(ROOT / "tests" / "recordings").glob("*.jsonl"),
            ROOT / "sidecar" / "record" / "recordings" / "demo.jsonl",
        ]
        assert len(paths) > 60
        redactor = Redactor()
        for path in paths:
            for line in path.read_text().splitlines():
                item = json.loads(line)
                assert redactor.clean(item) is item, path.name
