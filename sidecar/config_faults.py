"""Explains in plain words what is wrong with a configuration, and what to do about the fault."""

from __future__ import annotations

import os
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo

CORRECT_VARIABLE: Final = "fix or unset that variable"


def correct_file(path: Path | None) -> str:
    """The advice for a fault in the file."""
    return f"fix {path}, or delete it to use the defaults"


def explain(
    problem: Mapping[str, Any], model: type[BaseModel], path: Path | None, flags: Mapping[str, Any]
) -> tuple[str, str]:
    """Explain one of pydantic's errors about ``model``, the whole configuration: where and why, and the advice, which
    is empty for a flag."""
    # The one fault that concerns two sections has no place of its own.
    where = [str(part) for part in problem["loc"]] or ["worker", "log"]
    key = ".".join(where)
    source, advice = _source(where, path, flags)
    if problem["type"] == "extra_forbidden":
        return f"{source}: unknown key {key}{_near(model, where)}", advice
    return f"{source}: {key}: {_reason(problem, model, where)}", advice


def _source(where: list[str], path: Path | None, flags: Mapping[str, Any]) -> tuple[str, str]:
    """Where a value was given, and the advice to correct the value there."""
    section = f"DURABLE_STREAM_{where[0].upper()}"
    variable = "__".join([section, *(part.upper() for part in where[1:2])])
    names = {name.upper() for name in os.environ}
    if _holds(flags, where):
        return "command line", ""
    if section in names:
        return f"environment {section}", CORRECT_VARIABLE
    if any(name == variable or name.startswith(f"{variable}__") for name in names):
        return f"environment {variable}", CORRECT_VARIABLE
    return str(path), correct_file(path)


def _fields(model: type[BaseModel], section: list[str]) -> dict[str, FieldInfo]:
    found: Any = model
    for name in section:
        found = found.model_fields[name].annotation
    assert isinstance(found, type) and issubclass(found, BaseModel)
    return found.model_fields


def _near(model: type[BaseModel], where: list[str]) -> str:
    """A suggestion for an unknown key: the closest key, or all keys of its section."""
    known = sorted(field.alias or name for name, field in _fields(model, where[:-1]).items())
    near = get_close_matches(where[-1], known, n=1)
    return f" (did you mean {'.'.join([*where[:-1], near[0]])}?)" if near else f" (the keys are {', '.join(known)})"


_EXPECTED = {
    "int": "a whole number",
    "float": "a number",
    "finite_number": "a number",
    "bool": "true or false",
    "string": "a string",
    "path": "a path as a string",
    "tuple": 'a list, such as ["a", "b"]',
    "dict": 'a table, such as { name = "value" }',
    "model": "a section of keys and values",
}
"""The expected kind of value, by the first word of pydantic's error type."""


def _reason(problem: Mapping[str, Any], model: type[BaseModel], where: list[str]) -> str:
    """Why a value is invalid, without pydantic's wording."""
    kind, given, context = problem["type"], problem["input"], problem.get("ctx") or {}
    limits = [
        f"{words} {context[name]:.12g}"
        for name, words in (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below"))
        if name in context
    ]
    if limits:
        return f"must be {' and '.join(limits)}, not {given}"
    if kind == "value_error":
        return str(problem["msg"]).removeprefix("Value error, ")
    for name, words in (("min_length", "at least"), ("max_length", "at most")):
        if kind.startswith("string_") and name in context:  # do not quote the text, which may be a secret
            return f"must have {words} {context[name]} character{'' if context[name] == 1 else 's'}"
    # Do not quote a whole list or table, because it may be long.
    shown = f", not {given!r}" if isinstance(given, str | int | float) else ""
    if kind == "string_pattern_mismatch":
        example = _fields(model, where[:-1])[where[-1]].examples
        return f"must look like {(example or [context['pattern']])[0]}{shown}"
    if kind == "literal_error":
        return f"must be {context['expected']}{shown}"
    for beginning, expected in _EXPECTED.items():
        if kind.startswith(beginning):
            return f"must be {expected}{shown}"
    return str(problem["msg"])


def _holds(tree: Any, keys: list[str]) -> bool:
    """Whether ``tree`` has the path ``keys``; for an item of a list, whether it has the list."""
    for key in keys:
        if isinstance(tree, list):
            return True
        if not isinstance(tree, Mapping) or key not in tree:
            return False
        tree = tree[key]
    return True
