"""The answers of several homes as one, each with the name of its machine. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from heapq import nlargest
from typing import Any, Final

from bridge.opencode.capture.tokens import add_tokens, total_of
from sidecar.inspector.around import EDITS
from sidecar.inspector.search import MOST_SESSIONS
from sidecar.inspector.spending import DEAREST, MOST_MODELS

Answers = list[tuple[str, dict[str, Any]]]
"""What each home answered, after the name of its machine; at least one."""


def _rows(found: Answers, name: str, key: Callable[[Any], Any]) -> list[dict[str, Any]]:
    """The rows of all answers, the highest first."""
    rows = [{"machine": machine, **row} for machine, answer in found for row in answer[name]]
    return sorted(rows, key=key, reverse=True)


def _sessions(found: Answers, _: Mapping[str, str]) -> dict[str, Any]:
    rows = _rows(found, "sessions", lambda row: row["last_ts"])
    return {"sessions": rows, "records": sum(answer["records"] for _, answer in found)}


def _search(found: Answers, _: Mapping[str, str]) -> dict[str, Any]:
    groups = _rows(found, "groups", lambda row: (row["points"], row["last_ts"]))[:MOST_SESSIONS]
    total = sum(answer["total"] for _, answer in found)
    return found[0][1] | {"groups": groups, "total": total, "is_all": all(answer["is_all"] for _, answer in found)}


def _file(found: Answers, _: Mapping[str, str]) -> dict[str, Any]:
    return found[0][1] | {"edits": _rows(found, "edits", lambda row: row["ts"])[:EDITS]}


def _work(found: Answers, _: Mapping[str, str]) -> dict[str, Any]:
    return {
        "checkpoints": _rows(found, "checkpoints", lambda row: row["opened"])[::-1],
        "intents": _rows(found, "intents", lambda row: row["created"]),
        "hosts": _rows(found, "hosts", lambda row: row["created"]),
        "notices": _rows(found, "notices", lambda row: row["queued"]),
    }


def _costs(found: Answers, given: Mapping[str, str]) -> dict[str, Any]:
    by = "machine" if given.get("by") == "machine" else found[0][1]["by"]
    sums: dict[str, dict[str, Any]] = {}
    for machine, answer in found:
        for each in [answer["total"] | {"key": machine}] if by == "machine" else answer["sums"]:
            known = sums.get(each["key"])
            sums[each["key"]] = {"machine": machine, **each} if known is None else known | _added(known, each)
    rows = [each for each in sums.values() if each["steps"]]
    rows.sort(key=(lambda each: each["key"]) if by == "day" else _dear, reverse=by != "day")
    total = found[0][1]["total"]
    for _, answer in found[1:]:
        total = _added(total, answer["total"])
    return {
        "by": by,
        "range": found[0][1]["range"],
        "sums": rows,
        "total": total,
        "is_partial": any(answer["is_partial"] for _, answer in found),
        **_stacked([answer for _, answer in found]),
        "weeks": [round(sum(each), 9) for each in zip(*(answer["weeks"] for _, answer in found), strict=True)],
        "turns": _rows(found, "turns", lambda row: row["cost"])[:DEAREST],
    }


def _dear(each: Mapping[str, Any]) -> tuple[Any, ...]:
    return each["cost"], total_of(each["tokens"]), each["steps"]


def _added(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The sum of two sums; it has the key of the first one."""
    tokens = dict(one["tokens"])
    add_tokens(tokens, other["tokens"])
    counts = {name: one[name] + other[name] for name in ("steps", "sessions")}
    return {"key": one["key"], "cost": round(one["cost"] + other["cost"], 9), **counts, "tokens": tokens}


def _stacked(answers: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """``models`` and ``days`` of all: the dearest models of all machines keep their own colour."""
    days: dict[str, dict[str | None, list[float]]] = {}
    together: dict[str | None, list[float]] = {}
    for answer in answers:
        for row in answer["days"]:
            own = days.setdefault(row["day"], {})
            for model, used in zip(answer["models"], row["used"], strict=False):
                for sums in (own, together):
                    before = sums.get(model, [0.0, 0])
                    sums[model] = [round(before[0] + used[0], 9), before[1] + used[1]]
    models = nlargest(MOST_MODELS, (each for each in together if each is not None), key=lambda each: together[each])
    others = [each for each in together if each not in models]
    rows = []
    for day in sorted(days):
        own = days[day]
        parts = [own.get(model, [0.0, 0]) for model in models]
        if others:
            rest = [own[model] for model in others if model in own]
            parts.append([sum(each[0] for each in rest), sum(each[1] for each in rest)])
        rows.append({"day": day, "used": parts})
    return {"models": [*models, *([None] if others else [])], "days": rows}


def _health(found: Answers, _: Mapping[str, str]) -> dict[str, Any]:
    return {"machines": [{"machine": machine, **answer} for machine, answer in found]}


TOGETHER: Final[Mapping[str, Callable[[Answers, Mapping[str, str]], dict[str, Any]]]] = {
    "sessions": _sessions,
    "search": _search,
    "file": _file,
    "work": _work,
    "costs": _costs,
    "health": _health,
}
"""What several homes answer to each of the page's requests that is about all sessions, by the path of the request. The
second value is the query of the request."""
