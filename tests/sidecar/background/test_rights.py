"""The rules of background work: never more than both its agent and the one that asked may do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

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

globs = st.text("ab* ?", max_size=5)
rules = st.lists(
    st.builds(Rule, st.sampled_from(["*", "a", "a*", "b"]), globs, st.sampled_from(list(RANKS))), max_size=6
)


def effect_of(rules: Sequence[Rule], what: str, argument: str) -> str:
    return Rights("build", tuple(rules)).effect(what, argument)


def real(rules: list[Rule], what: str, argument: str) -> str:
    """What OpenCode does, as its own code decides."""

    def matches(text: str, glob: str) -> bool:
        pattern = "".join({"*": ".*", "?": "."}.get(sign, re.escape(sign)) for sign in glob)
        if glob.endswith(" *"):
            pattern = pattern.removesuffix(re.escape(" ") + ".*") + "( .*)?"
        return re.fullmatch(pattern, text, re.DOTALL) is not None

    found = [rule.effect for rule in rules if matches(what, rule.what) and matches(argument, rule.pattern)]
    return found[-1] if found else "ask"


def least(*effects: str) -> str:
    return min(effects, key=RANKS.__getitem__)


@given(rules, st.sampled_from(["a", "b", "ab"]), st.text("ab ", max_size=5))
def test_effects_are_those_of_opencode(some: list[Rule], what: str, argument: str) -> None:
    assert effect_of(some, what, argument) == real(some, what, argument)


@given(rules, rules, rules, st.sampled_from(["a", "b", "ab"]), st.text("ab ", max_size=5))
def test_two_lists_together_allow_no_more_than_each(
    shared: list[Rule], one: list[Rule], other: list[Rule], what: str, argument: str
) -> None:
    first, second = shared + one + shared, shared + other
    met = real(first + meet(first, second), what, argument)
    assert RANKS[met] <= RANKS[least(real(first, what, argument), real(second, what, argument))]


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
