"""Made-up secrets of every known kind, assembled so that no scanner reports them, and places for them."""

from __future__ import annotations

import base64
import json
from random import Random
from typing import Any

from bridge.opencode.redact import Redactor

ALNUM = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


def made_up(length: int, alphabet: str = ALNUM, seed: int = 7) -> str:
    """Random characters, with a capital and a digit among the first."""
    random = Random(seed)
    return "Q7" * (alphabet is ALNUM) + "".join(
        random.choice(alphabet) for _ in range(length - 2 * (alphabet is ALNUM))
    )


HEX = "0123456789abcdef"
UPPER = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
URLSAFE = ALNUM + "-_"


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
PEM_BODY = "\n".join(made_up(64, ALNUM + "+/", seed) for seed in range(5))


def pem(kind: str = "RSA ", end: str = "PRIVATE " + "KEY-----") -> str:
    return f"-----BEGIN {kind}{end}\n{PEM_BODY}\n-----END {kind}{end}"


SHARED = Redactor()
"""Making one takes longer than using it."""


def clean(value: Any, **more: Any) -> Any:
    return (Redactor(**more) if more else SHARED).clean(value)
