"""Each rule of ``rules.toml``: its matches and non-matches, at any depth of escaping and in bounded time."""

from __future__ import annotations

import asyncio
import importlib
import json
import pkgutil
import re
from functools import cache
from itertools import product
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any

import pytest
from detect_secrets import plugins
from detect_secrets.plugins.base import RegexBasedDetector

from bridge.opencode.redact import Redactor
from bridge.opencode.redact.rules import MAX_BEFORE, Rule, built_in, compiled, entropy
from tests.security.drawn import drawn, matching
from tests.security.made_up import clean

RULES = {rule.id: rule for rule in built_in()}
HANG_SECONDS = 60.0


@cache
def only(rule: str) -> Redactor:
    """A redactor with one rule. Making one takes longer than using it, so all tests of a rule share it."""
    return Redactor(disable=set(RULES) - {rule})


def nested(text: str, depth: int) -> str:
    """``text`` in nested JSON strings."""
    for _ in range(depth):
        text = json.dumps({"output": f"before\n{text}\tafter"})
    return text


def test_each_rule_says_what_it_is_and_has_examples_of_both_kinds() -> None:
    assert len(RULES) == len(built_in()) > 60
    for rule in RULES.values():
        assert rule.description and rule.examples and rule.ordinary, rule.id
        assert bool(rule.keywords) != bool(rule.shape), rule.id
        assert re.fullmatch(r"[a-z0-9-]+", rule.id)


@pytest.mark.parametrize("rule", RULES)
def test_an_example_is_found_at_any_depth_of_escaping(rule: str) -> None:
    redactor = only(rule)
    for form, seed, depth in product(RULES[rule].examples, range(3), range(4)):
        text, before = drawn(form, seed), redactor.redactions
        # A whole payload and a single string: redaction handles them differently.
        cleaned = redactor.clean({"text": nested(text, depth)})["text"]
        assert f"[redacted:{rule}]" in cleaned, (depth, text)
        assert redactor.redactions == before + 1, (depth, cleaned)
        assert cleaned == redactor.clean(nested(text, depth))
        for secret in set(re.findall(r"[\w+/-]{12,}", text)) - set(re.findall(r"[\w+/-]{12,}", form)):
            assert secret not in cleaned, depth
        if depth:
            json.loads(cleaned)  # the text around it is what it was


@pytest.mark.parametrize("rule", RULES)
def test_what_only_looks_alike_stays(rule: str) -> None:
    for form, seed, depth in product(RULES[rule].ordinary, range(3), range(3)):
        text = nested(drawn(form, seed), depth)
        assert only(rule).clean({"text": text}) == {"text": text}


def _detectors() -> list[tuple[str, int, re.Pattern[str]]]:
    found = []
    for name in (f"detect_secrets.plugins.{module.name}" for module in pkgutil.iter_modules(plugins.__path__)):
        for kind in vars(importlib.import_module(name)).values():
            own = isinstance(kind, type) and issubclass(kind, RegexBasedDetector) and kind is not RegexBasedDetector
            if own and kind.__module__ == name and kind.secret_type != "Public IP (ipv4)":  # an address is not a secret
                found += [(kind.__name__, number, pattern) for number, pattern in enumerate(kind.denylist)]
    return found


DETECTORS = _detectors()


def test_the_detectors_are_all_here() -> None:
    assert len({name for name, _, _ in DETECTORS}) >= 23


@pytest.mark.parametrize(("name", "number", "pattern"), DETECTORS, ids=[f"{name}-{n}" for name, n, _ in DETECTORS])
def test_what_detect_secrets_finds_by_pattern_is_found(name: str, number: int, pattern: re.Pattern[str]) -> None:
    """A detect-secrets release that knows more fails here."""
    for seed in range(10):
        text = _jwt(seed) if name == "JwtTokenDetector" else matching(pattern, seed)
        match = pattern.search(text)
        assert match is not None
        groups = [group for group in match.groups() if group and len(group) > 8]
        for secret in groups or [match[0].strip("\"'=: ")]:
            cleaned = clean({"text": text})["text"]
            assert secret not in cleaned and "[redacted:" in cleaned, (text, cleaned)


def _jwt(seed: int) -> str:
    import base64

    parts: list[Any] = [{"alg": "HS256", "typ": "JWT"}, {"sub": str(seed), "n": "Nobody"}]
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts) + "."


# --- bounded time ---


def _unbounded(items: Any, last: bool = True) -> list[str]:
    """Unlimited repeats before something that can fail: these backtrack catastrophically."""
    wrong = []
    for place, (kind, value) in enumerate(items):
        ends = last and place == len(items) - 1
        if kind in (_constants.MAX_REPEAT, _constants.MIN_REPEAT):
            if value[1] is _constants.MAXREPEAT and not ends and not _cannot_fail(items[place + 1 :]):
                wrong.append(str(value[2])[:60])
            wrong += _unbounded(value[2], False)
        elif kind is _constants.BRANCH:
            wrong += [fault for branch in value[1] for fault in _unbounded(branch, ends)]
        elif kind is _constants.SUBPATTERN:
            wrong += _unbounded(value[3], ends)
        elif kind in (_constants.ASSERT, _constants.ASSERT_NOT):
            wrong += _unbounded(value[1], False)
    return wrong


def _cannot_fail(items: Any) -> bool:
    return all(kind is _constants.MAX_REPEAT and value[0] == 0 for kind, value in items)


@pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))
def test_no_pattern_can_go_wild(rule: Rule) -> None:
    parsed = _parser.parse(rule.pattern.pattern, rule.pattern.flags)
    trailing = r"(?![A-Za-z0-9+/=_(-])"
    if rule.regex.endswith(trailing):  # then each repeat before it is tried once a keyword, and a word begins there
        parsed = _parser.parse(compiled(rule.regex.removesuffix(trailing)).pattern)
    assert _unbounded(parsed) == []
    if rule.before:
        assert _parser.parse(rule.before).getwidth()[1] <= MAX_BEFORE


HOSTILE = (
    *("A1", "://", '"', "\\", "token=", "eyJ-", "-----BEGIN A PRIVATE KEY-----\n", "pass", "PASS=", "password: ("),
    *("secret='", "mysql ", "docker login ", "?key=", "--pass ", "--a-a-a-", "login a ", '"token":"\\', "key\n"),
    *("machine a login a ", "a:*:b:", "://a:", "curl -u ", "sk-", "Bearer ", "a-"),
)


@pytest.mark.parametrize("unit", HOSTILE)
async def test_many_near_matches_take_no_quadratic_time(unit: str) -> None:
    """Quadratic time would mean many minutes; the limit only detects a hang."""
    async with asyncio.timeout(HANG_SECONDS):
        await asyncio.to_thread(clean, {"text": unit * (64 * 1024 // len(unit))})


async def test_the_beginnings_of_a_kind_take_no_quadratic_time() -> None:
    async with asyncio.timeout(HANG_SECONDS):
        for rule in RULES.values():
            whole = drawn(rule.examples[0])
            for unit in {whole[: len(whole) // 2] + " ", whole[: 3 * len(whole) // 4], whole[:-2] + "-"}:
                await asyncio.to_thread(only(rule.id).clean, [unit * (64 * 1024 // len(unit))])


# --- arithmetic ---


def test_entropy_is_shannons() -> None:
    for data, bits in ((b"", 0), (b"aaaa", 0), (b"abab", 1), (b"abcd", 2), (bytes(range(256)), 8)):
        assert entropy(data) == pytest.approx(bits)


@pytest.mark.parametrize("joint", [" && ", "; ", " | ", " || ", " "])
@pytest.mark.parametrize("first", ["Cookie: sid=abcdefgh1", "curl -b sid=abcdefgh1"])
def test_a_cookie_ends_before_the_next_command_of_its_line(first: str, joint: str) -> None:
    cleaned = Redactor().clean({"text": f"{first}{joint}curl -b 'sid=letmein42' x"})["text"]
    assert cleaned.count("cookie]") == 2 and "abcdefgh1" not in cleaned and "letmein42" not in cleaned
    assert cleaned.endswith(f"{joint}curl -b '[redacted:curl-cookie]' x")
