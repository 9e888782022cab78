"""What a session may do, and what is left of that for background work that the session starts. Pure.

A rule says what OpenCode does with a tool (``what``) and one of its arguments (``pattern``): ``allow``, ``ask`` or
``deny``. The last rule that matches wins, and an agent's rules come before those of its session. Both versions of
OpenCode work in this way; what no rule matches is asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

_RANKS: Final = {"deny": 0, "ask": 1, "allow": 2}

_NONE: Final = "\0"
"""Stands for a glob that matches nothing."""


class Rule(NamedTuple):
    """One rule of OpenCode. ``what`` and ``pattern`` are globs with ``*`` and ``?``."""

    what: str
    pattern: str
    effect: str


class Rights(NamedTuple):
    """What a session may do: the ``agent`` that it runs, the rules of that agent, and the rules of the session
    itself."""

    agent: str
    rules: tuple[Rule, ...] = ()
    session: tuple[Rule, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {"agent": self.agent, "rules": list(map(list, self.rules)), "session": list(map(list, self.session))}

    def effect(self, what: str, argument: str) -> str:
        """What OpenCode does with a call of the session."""
        rules = [*self.rules, *self.session][::-1]
        return next((r.effect for r in rules if _covers(r.what, what) and _covers(r.pattern, argument)), "ask")

    @staticmethod
    def of(given: Mapping[str, Any]) -> Rights:
        rules, session = (tuple(Rule(*each) for each in given[name]) for name in ("rules", "session"))
        return Rights(str(given["agent"]), rules, session)


def for_work(own: Sequence[Rule], asker: Rights) -> list[Rule]:
    """The rules for the session of background work, whose agent has the rules ``own`` where the work is done.

    With these rules, the work may do what both its agent and the session that asked for it may do.
    """
    if tuple(own) == asker.rules:
        return list(asker.session)
    return meet(own, [*asker.rules, *asker.session])


def meet(one: Iterable[Rule], other: Iterable[Rule]) -> list[Rule]:
    """Rules that allow only what both lists allow, and ask only for what neither list denies.

    For a call whose last matching rules are ``a`` and ``b``, the last of all pairs of matching rules is ``(a, b)``. So
    the pairs, in this order, are the wanted rules. If it is not known which calls both rules of a pair match, the pair
    becomes a ``deny`` that matches more calls than needed.
    """
    first, second = _last_of_each(one), _last_of_each(other)
    places = [{(rule.what, rule.pattern): n for n, rule in enumerate(rules)} for rules in (first, second)]
    found: list[Rule] = []
    unclear: list[Rule] = []
    for n, a in enumerate(first):
        for m, b in enumerate(second):
            # A later rule with the same globs wins over one of the two, so no call ends at this pair.
            if places[1].get(a[:2], m) > m or places[0].get(b[:2], n) > n:
                continue
            strict = a if _rank(a) <= _rank(b) else b
            what, pattern = _both(a.what, b.what), _both(a.pattern, b.pattern)
            if _NONE in (what, pattern):
                continue
            if what is not None and pattern is not None:
                found.append(Rule(what, pattern, strict.effect))
            elif strict.effect != "allow":
                unclear.append(strict._replace(effect="deny"))
    return _last_of_each([*found, *unclear], is_whole=False)


def _rank(rule: Rule) -> int:
    return _RANKS.get(rule.effect, 0)


def _last_of_each(rules: Iterable[Rule], *, is_whole: bool = True) -> list[Rule]:
    """The rules without those that a later rule with the same globs replaces. If they are a whole list, the list begins
    with what holds without any rule."""
    found: dict[tuple[str, str], Rule] = {}
    for rule in [*([Rule("*", "*", "ask")] if is_whole else []), *rules]:
        found.pop(rule[:2], None)
        found[rule[:2]] = rule
    return list(found.values())


def _both(one: str, other: str) -> str | None:
    """A glob for the texts that both globs match: ``_NONE`` if there are none, ``None`` if that is not known."""
    if _covers(one, other):
        return other
    if _covers(other, one):
        return one
    return _NONE if _differ(one, other) or _differ(one[::-1], other[::-1]) else None


def _differ(one: str, other: str) -> bool:
    """Whether no text can begin as both globs do."""
    one, other = _optional(one), _optional(other)
    for a, b in zip(one, other, strict=False):
        if "*" in (a, b):
            return False
        if a != b and "?" not in (a, b):
            return True
    rest = one[len(other) :] or other[len(one) :]
    return rest.strip("*") != ""


def _optional(glob: str) -> str:
    """The glob, of which OpenCode does not require the last two characters if these are a space and a star. It may be
    reversed."""
    if glob.endswith(" *"):
        return glob[:-2] + "*"
    return "*" + glob[2:] if glob.startswith("* ") else glob


def _covers(glob: str, other: str) -> bool:
    """Whether each text that the glob ``other`` matches is one that ``glob`` matches. Also answers for a text in
    place of ``other``. False if that is not known."""
    texts = [other, other[:-2]] if other.endswith(" *") else [other]
    globs = [glob, glob[:-2]] if glob.endswith(" *") else [glob]
    return all(any(_reaches(each, text) for each in globs) for text in texts)


def _reaches(glob: str, text: str) -> bool:
    """Whether a glob matches a text. A ``*`` in the text stands for any characters, so only a ``*`` matches it."""
    reached = {0}
    for sign in glob:
        if sign == "*":
            reached = set(range(min(reached), len(text) + 1))
        else:
            fits = {n for n in reached if n < len(text) and text[n] != "*" and sign in ("?", text[n])}
            reached = {n + 1 for n in fits}
        if not reached:
            return False
    return len(text) in reached
