"""What a session may do, and what is left of that for background work that the session starts. Pure.

A rule says what OpenCode does with a tool (``what``) and one of its arguments (``pattern``): ``allow``, ``ask`` or
``deny``. The last rule that matches wins, and an agent's rules come before those of its session. Both versions of
OpenCode work in this way; what no rule matches is asked. A tool whose last rule is a ``deny`` of all its arguments is
hidden from the model. That alone forbids a tool that never asks, such as one of a plugin.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

_RANKS: Final = {"deny": 0, "ask": 1, "allow": 2}
_FILES: Final = ("read", "edit", "list")
"""The tools whose argument is a file."""

_WILD: Final = re.compile("[*?]")
_WIDE: Final = re.compile("[\U00010000-\U0010ffff]")
_PAIR: Final = re.compile("[\ud800-\udbff][\udc00-\udfff]")

Effects = dict[str, str]
"""The effects of patterns. A later pattern wins."""


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
        rules = [_read(rule) for rule in (_ASK, *self.rules, *self.session)]
        what, argument = (_signs(text).replace("*", "\0") for text in (what, argument))
        of_tool = _Globs(rule.what for rule in rules).covering(what)
        return rules[max(of_tool & _Globs(rule.pattern for rule in rules).covering(argument))].effect

    @staticmethod
    def of(given: Mapping[str, Any]) -> Rights:
        rules, session = (tuple(Rule(*each) for each in given[name]) for name in ("rules", "session"))
        return Rights(str(given["agent"]), rules, session)


_ASK: Final = Rule("*", "*", "ask")
"""What holds without any rule."""


def for_work(own: Sequence[Rule], asker: Rights) -> list[Rule]:
    """The rules for the session of background work, whose agent has the rules ``own`` where the work is done.

    With these rules, the work may do what both its agent and the session that asked for it may do.
    """
    if tuple(own) == asker.rules:
        return list(asker.session)
    return meet(own, [*asker.rules, *asker.session])


def for_originals(rules: Iterable[Rule], original: Callable[[str], str]) -> list[Rule]:
    """What ``rules`` say of the user's own files, for a session that works in a copy of them.

    A rule that names a file of the project relatively means the copy's file there. So this denies what the rule does
    not allow also where the user's file is: ``original`` turns the pattern into that place. The session may edit its
    copy, so what was to be asked is denied, too.
    """
    strict = [rule for rule in rules if rule.effect != "allow" and rule.pattern[:1] not in ("", "*", "?", "/", "~")]
    named = [(tool, original(_signs(rule.pattern))) for rule in strict for tool in _FILES if _names(rule.what, tool)]
    return [Rule(tool, pattern, "deny") for tool, pattern in dict.fromkeys(named)]


def _names(what: str, tool: str) -> bool:
    return re.fullmatch(re.escape(what).replace(r"\*", ".*").replace(r"\?", "."), tool) is not None


def meet(one: Iterable[Rule], other: Iterable[Rule]) -> list[Rule]:
    """Rules that allow only what both lists allow, ask only for what neither list denies, and hide what one list hides.

    The rules stand together for each ``what``, the more general first, so the last ``what`` that matches a tool decides
    alone. Its rules come from all that match each of its tools. If it is not known which tools, or which arguments,
    two rules both match, one becomes a ``deny`` that matches more calls than needed.

    The time is linear in the rules, and for each ``what`` in the rules that match it.
    """
    known = [_by_what([_read(rule) for rule in (_ASK, *rules)]) for rules in (one, other)]
    whats = list(dict.fromkeys(chain(*(places for _, places in known))))
    globs, near = _Globs(whats), _Near(whats)
    above = {what: [whats[n] for n in globs.covering(what)] for what in whats}
    found: list[Rule] = []
    for what in sorted(whats, key=lambda each: (_WILD.search(each) is None, len(above[each]))):
        first, second = (
            _effects(rules[n] for n in sorted(chain(*(places.get(each, ()) for each in above[what]))))
            for rules, places in known
        )
        beside = (each for each in near.of(what) if _is_unclear(what, each))
        denied = [
            Rule(each, "*", "deny")
            for each in beside
            if any(rules[n].effect != "allow" for rules, places in known for n in places.get(each, ()))
        ]
        if any(list(effects.items())[-1] == ("*", "deny") for effects in (first, second)):
            found += [*denied, Rule(what, "*", "deny")]
        else:
            found += [*(Rule(what, *each) for each in _both(first, second)), *denied]
    last = {rule[:2]: place for place, rule in enumerate(found)}
    return [Rule(_text(found[n].what), _text(found[n].pattern), found[n].effect) for n in sorted(last.values())]


def _by_what(rules: list[Rule]) -> tuple[list[Rule], dict[str, list[int]]]:
    places: dict[str, list[int]] = defaultdict(list)
    for place, rule in enumerate(rules):
        places[rule.what].append(place)
    return rules, places


def _effects(rules: Iterable[Rule]) -> Effects:
    found: Effects = {}
    for rule in rules:
        found.pop(rule.pattern, None)
        found[rule.pattern] = rule.effect
    return found


def _both(one: Effects, other: Effects) -> Iterator[tuple[str, str]]:
    """Patterns with the stricter of the effects that two lists have for the same tools.

    For a call whose last matching patterns are ``a`` and ``b``, the last pattern here that matches is one that ``a``
    and ``b`` cover, if one of the two covers the other. If that is not known, the stricter is denied at the end.
    """
    lists = [list(each.items()) for each in (one, other)]
    globs = [_Globs(one), _Globs(other)]
    ends = {pattern: [max(each.covering(pattern)) for each in globs] for pattern in (one | other)}
    for pattern, (n, m) in sorted(ends.items(), key=lambda each: each[1]):
        yield pattern, min(lists[0][n][1], lists[1][m][1], key=_rank)
    for mine, theirs in ((0, 1), (1, 0)):
        # A call ends at two patterns only if no later pattern of each list covers that of the other list. So only these
        # of the other list can be the second: some pattern after what covers them is covered only before them.
        lows = [len(ends)]
        for pattern, effect in reversed(lists[mine]):
            lows.append(lows[-1] if effect == "allow" else min(lows[-1], ends[pattern][theirs]))
        lows.reverse()
        seconds = [(b, _rank(it)) for m, (b, it) in enumerate(lists[theirs]) if lows[ends[b][mine] + 1] < m]
        near = [_Near(b for b, rank in seconds if rank >= least + mine) for least in (0, 1)]
        for n, (a, effect) in enumerate(lists[mine]):
            if effect != "allow" and any(
                ends[b][mine] < n and ends[a][theirs] < ends[b][theirs] and _is_unclear(a, b)
                for b in near[_rank(effect)].of(a)
            ):
                yield a, "deny"


def _rank(effect: str) -> int:
    return _RANKS.get(effect, 0)


# --- globs ---


class _Node:
    """A place in a tree of globs."""

    __slots__ = ("ends", "is_star", "then")

    def __init__(self, *, is_star: bool = False) -> None:
        self.then: dict[str, _Node] = {}
        self.ends: list[int] = []
        self.is_star = is_star


class _Globs:
    """Globs in a tree, in which a text is compared with all of them at once."""

    def __init__(self, globs: Iterable[str]) -> None:
        self._root = _Node()
        for number, glob in enumerate(globs):
            for form in _forms(glob):
                node = self._root
                for sign in form:
                    if not (sign == "*" and node.is_star):
                        node = node.then.setdefault(sign, _Node(is_star=sign == "*"))
                node.ends.append(number)

    def covering(self, glob: str) -> set[int]:
        """The numbers of those that match each text that ``glob`` matches. Some of them may not be found, but each that
        equals the glob, and ``*``, is."""
        return set.intersection(*map(self._matching, _forms(glob)))

    def _matching(self, text: str) -> set[int]:
        """A ``*`` in the text stands for any characters, so only a ``*`` matches it."""
        nodes = {self._root, *self._stars([self._root])}
        for sign in text:
            reached = {node for node in nodes if node.is_star}
            if sign != "*":
                reached |= {node.then[each] for node in nodes for each in {sign, "?"} & node.then.keys()}
            nodes = reached.union(self._stars(reached))
        return {number for node in nodes for number in node.ends}

    def _stars(self, nodes: Iterable[_Node]) -> Iterator[_Node]:
        return (node.then["*"] for node in nodes if "*" in node.then)


class _Near:
    """Globs by the plain characters with which they begin and end."""

    def __init__(self, globs: Iterable[str]) -> None:
        self._longer: dict[tuple[int, str], list[str]] = defaultdict(list)
        self._exact: dict[tuple[int, str], list[str]] = defaultdict(list)
        for glob in filter(_WILD.search, globs):
            for side, plain in enumerate(_ends(glob)):
                self._exact[side, plain].append(glob)
                for length in range(len(plain) + 1):
                    self._longer[side, plain[:length]].append(glob)

    def of(self, glob: str) -> Iterable[str]:
        """The globs that may match a text that ``glob`` matches, as far as the beginning, or the end, tells. None for
        a glob that is a text."""
        if not _WILD.search(glob):
            return ()
        found = [
            [
                self._longer.get((side, plain), []),
                *(self._exact.get((side, plain[:length]), []) for length in range(len(plain))),
            ]
            for side, plain in enumerate(_ends(glob))
        ]
        return chain(*min(found, key=lambda lists: sum(map(len, lists))))


def _ends(glob: str) -> tuple[str, str]:
    parts = _WILD.split(_optional(glob))
    return parts[0], parts[-1][::-1]


def _forms(glob: str) -> list[str]:
    """OpenCode does not require the last two characters of a glob if these are a space and a star."""
    return [glob, glob[:-2]] if glob.endswith(" *") else [glob]


def _optional(glob: str) -> str:
    """A glob for at least the same texts, without a space that is not required. It may be reversed."""
    if glob.endswith(" *"):
        return glob[:-2] + "*"
    return "*" + glob[2:] if glob.startswith("* ") else glob


def _is_unclear(one: str, other: str) -> bool:
    """Whether two globs may match the same text, and it is not known that one of them covers the other."""
    if _Globs([one]).covering(other) or _Globs([other]).covering(one):
        return False
    return not (_differ(one, other) or _differ(one[::-1], other[::-1]))


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


def _read(rule: Rule) -> Rule:
    return Rule(_signs(rule.what), _signs(rule.pattern), rule.effect)


def _signs(text: str) -> str:
    """A text as OpenCode compares it: ``\\`` is ``/``, and a sign is a unit of UTF-16."""
    units = _WIDE.sub(lambda found: _units(found[0]), text)
    return units.replace("\\", "/")


def _units(sign: str) -> str:
    high, low = divmod(ord(sign) - 0x10000, 0x400)
    return chr(0xD800 + high) + chr(0xDC00 + low)


def _text(signs: str) -> str:
    return _PAIR.sub(lambda found: found[0].encode("utf-16", "surrogatepass").decode("utf-16"), signs)
