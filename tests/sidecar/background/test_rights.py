"""The rules of background work: never more than both its agent and the one that asked may do."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from functools import cache
from itertools import product
from random import Random
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.background.hosts import rights
from sidecar.background.hosts.rights import Rights, Rule, for_work, meet

RANKS = {"deny": 0, "ask": 1, "allow": 2}
DEFAULTS = [
    Rule("*", "*", "allow"),
    Rule("external_directory", "*", "ask"),
    Rule("question", "*", "deny"),
    Rule("read", "*.env", "ask"),
    Rule("read", "*.env.*", "ask"),
    Rule("read", "*.env.example", "allow"),
]
PLAN = [Rule("edit", "*", "deny"), Rule("edit", "plans/*.md", "allow")]
EXPLORE = [Rule("*", "*", "deny"), Rule("grep", "*", "allow"), Rule("read", "*", "allow")]
CALLS = [
    *product(["bash"], ["git", "git log", "git push --force", "rm -rf /", "ls"]),
    *product(["edit", "read"], ["a.py", "plans/a.md", "a.env", "a.env.b", "a.env.example"]),
    *product(["grep", "question", "task", "external_directory"], ["*", "general", "/etc/*"]),
]

SIGNS = "ab*? /\\~\U0001f511"
globs = st.text(SIGNS, max_size=5)
tools = st.sampled_from(["*", "a", "a*", "b", "*b", "a*b", "ab", "?", "a *", "a/b", "a\\b"])
lists = st.lists(st.builds(Rule, tools, globs, st.sampled_from(list(RANKS))), max_size=6)
TOOLS = ["a", "b", "ab", "aab", "a/b", "a\\b", "a b", "c"]


def drawn(seed: int) -> list[tuple[str, str]]:
    """Calls of all tools."""
    draw = Random(seed)
    return [(tool, "".join(draw.choices(SIGNS, k=draw.randint(0, 5)))) for tool in TOOLS for _ in range(5)]


def effect_of(rules: Sequence[Rule], what: str, argument: str) -> str:
    return Rights("build", tuple(rules)).effect(what, argument)


def matches(text: str, glob: str) -> bool:
    """As both versions of OpenCode match: ``tests/real/test_rights.py`` compares this with their own code."""
    return _compiled(glob).fullmatch(units(text)) is not None


@cache
def _compiled(glob: str) -> re.Pattern[str]:
    glob = units(glob)
    pattern = "".join({"*": ".*", "?": "."}.get(sign, re.escape(sign)) for sign in glob)
    if glob.endswith(" *"):
        pattern = pattern.removesuffix(re.escape(" ") + ".*") + "( .*)?"
    return re.compile(pattern, re.DOTALL)


@cache
def units(text: str) -> str:
    code = text.replace("\\", "/").encode("utf-16-le", "surrogatepass")
    return "".join(chr(int.from_bytes(code[n : n + 2], "little")) for n in range(0, len(code), 2))


def real(rules: Sequence[Rule], what: str, argument: str) -> str:
    """What OpenCode does, as its own code decides."""
    found = [rule.effect for rule in rules if matches(what, rule.what) and matches(argument, rule.pattern)]
    return found[-1] if found else "ask"


def hides(rules: Sequence[Rule], tool: str) -> bool:
    """Whether OpenCode does not show a tool to the model."""
    found = [rule for rule in rules if matches(tool, rule.what)]
    return bool(found) and found[-1][1:] == ("*", "deny")


def least(*effects: str) -> str:
    return min(effects, key=RANKS.__getitem__)


@given(lists, st.integers())
def test_effects_are_those_of_opencode(some: list[Rule], seed: int) -> None:
    for what, argument in drawn(seed):
        assert effect_of(some, what, argument) == real(some, what, argument)


@given(lists, lists, lists, st.integers())
def test_two_lists_together_allow_no_more_than_each(
    shared: list[Rule], one: list[Rule], other: list[Rule], seed: int
) -> None:
    first, second = shared + one + shared, shared + other
    met = first + meet(first, second)
    patterns = [rule.pattern for rule in met]
    for what, argument in [*drawn(seed), *product(TOOLS, patterns[:10])]:
        wanted = least(real(first, what, argument), real(second, what, argument))
        assert RANKS[real(met, what, argument)] <= RANKS[wanted], (what, argument)
    for tool in TOOLS:
        assert hides(met, tool) or not (hides(first, tool) or hides(second, tool)), tool


def test_a_backslash_is_a_slash() -> None:
    for one, other in product(["secret/*", "secret\\*"], repeat=2):
        allows = [Rule("read", "*", "deny"), Rule("read", one, "allow")]
        met = meet(allows, [Rule("read", "*", "allow"), Rule("read", other, "deny")])
        assert real(met, "read", "secret/a") == real(met, "read", "secret\\a") == "deny"


def test_a_tool_that_never_asks_stays_hidden() -> None:
    hidden = [*DEFAULTS, Rule("mine", "*", "deny")]
    other = [*DEFAULTS, Rule("*", "rm *", "ask")]
    assert all(hides(one + meet(one, two), "mine") for one, two in ((hidden, other), (other, hidden)))


FAMILIES = {
    "texts": lambda n: Rule("bash", f"cmd {n}", "deny"),
    "beginnings": lambda n: Rule("bash", f"git cmd{n} *", "ask" if n % 2 else "deny"),
    "ends": lambda n: Rule("read", f"*.secret{n}", "deny"),
    "middles": lambda n: Rule("bash", f"* --opt{n} *", "allow" if n % 2 else "ask"),
    "tools": lambda n: Rule(f"server_tool{n}", "*", "deny"),
    "servers": lambda n: Rule(f"server{n}_*", "*", "deny"),
}


def steps_of(one: list[Rule], other: list[Rule]) -> int:
    """How many lines of the rules' module two lists need."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace if frame.f_code.co_filename == rights.__file__ else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        meet(one, other)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("is_same", [True, False], ids=["same", "other"])
def test_twice_the_rules_need_twice_the_steps(family: str, is_same: bool) -> None:
    def steps(size: int) -> int:
        one, other = (
            [FAMILIES[family](n + 1_000 * (begin + size)) for n in range(size)] for begin in (0, 0 if is_same else size)
        )
        return steps_of(DEFAULTS + one, DEFAULTS + PLAN + other)

    assert steps(160) < 2.4 * steps(80)


def test_with_rules_as_people_write_them_two_lists_allow_no_less_either() -> None:
    own = [Rule("bash", "*", "ask"), Rule("bash", "git *", "allow"), Rule("bash", "rm *", "deny")]
    lists = [DEFAULTS + more for more in ([], PLAN, EXPLORE, own, PLAN + own, EXPLORE + own)]
    for one, other in product(lists, lists):
        met = one + meet(one, other)
        for what, argument in CALLS:
            wanted = least(real(one, what, argument), real(other, what, argument))
            assert real(met, what, argument) == wanted, (one, other, what, argument)


def test_the_agent_of_the_asker_needs_only_the_rules_of_its_session() -> None:
    asker = Rights("plan", tuple(DEFAULTS + PLAN), (Rule("bash", "*", "deny"),))
    assert for_work(DEFAULTS + PLAN, asker) == [Rule("bash", "*", "deny")]


def test_another_agent_is_bound_by_the_rules_of_the_asker_and_of_its_session() -> None:
    asker = Rights("plan", tuple(DEFAULTS + PLAN), (Rule("bash", "*", "deny"),))
    made = DEFAULTS + for_work(DEFAULTS, asker)
    assert [real(made, what, "a") for what in ("bash", "edit", "read")] == ["deny", "deny", "allow"]


def test_a_long_chain_of_agents_has_no_longer_rules() -> None:
    met = meet(DEFAULTS, DEFAULTS + PLAN)
    for _ in range(5):
        again = meet(DEFAULTS, [*DEFAULTS, *met])
        assert len(again) == len(met)
        met = again


def test_rights_are_kept_as_json() -> None:
    asker = Rights("plan", tuple(PLAN), ())
    assert Rights.of(asker.as_json()) == asker
