"""Reads fields of a payload that may be missing or have another type. Pure."""

from __future__ import annotations

import re
from typing import Any, Final, TypeGuard

from sidecar.read.wording import bytes_text

_CUT = {"$sha256", "bytes", "beginning"}


def as_text(value: Any) -> str:
    """``value`` if it is a string; of a string that was too long to keep, its size and its beginning; otherwise the
    empty string."""
    if isinstance(value, str):
        return value
    return cut_text(value) if isinstance(value, dict) else ""


def cut_text(value: dict[str, Any]) -> str:
    """What is left of a string that was too long to keep (see ``bridge/opencode/redact``), with what is missing; the
    empty string for any other mapping."""
    size, beginning = value.get("bytes"), value.get("beginning")
    if value.keys() != _CUT or not is_number(size) or not isinstance(beginning, str):
        return ""
    note = f"cut: {bytes_text(int(size))} is too long to keep; OpenCode's own history has the rest"
    return f"[{note}] {beginning} […]"


def has_cut(payload: dict[str, Any]) -> bool:
    """True if a string in a decoded ``payload`` was too long to keep. Fast, as the catalog asks of each record."""
    found: list[Any] = [payload]
    for each in found:  # grows while it is read
        if type(each) is dict:
            if "beginning" in each and cut_text(each):
                return True
            each = each.values()
        found += [one for one in each if type(one) is dict or type(one) is list]
    return False


def with_cuts_shown(value: Any) -> Any:
    """A copy of ``value`` in which ``cut_text`` stands for each string that was too long to keep."""
    if isinstance(value, dict):
        return cut_text(value) or {name: with_cuts_shown(one) for name, one in value.items()}
    return [with_cuts_shown(one) for one in value] if isinstance(value, list) else value


def as_mapping(value: Any) -> dict[str, Any]:
    """``value`` if it is a mapping; otherwise an empty mapping."""
    return value if isinstance(value, dict) else {}


def model_name(value: Any) -> str:
    """A payload's model as ``provider/model``; empty if it is not known."""
    model = as_mapping(value)
    provider, name = as_text(model.get("provider")), as_text(model.get("model"))
    return f"{provider}/{name}" if provider and name else provider or name


def as_list(value: Any) -> list[Any]:
    """``value`` if it is a list; otherwise an empty list."""
    return value if isinstance(value, list) else []


def as_strings(value: Any) -> list[str]:
    """The strings in ``value`` if it is a list; otherwise an empty list."""
    return [one for one in as_list(value) if isinstance(one, str)]


def as_int(value: Any) -> int | None:
    """``value`` as a whole number if it is a number; otherwise ``None``."""
    return int(value) if is_number(value) and abs(value) < 2**53 else None


def is_number(value: Any) -> TypeGuard[int | float]:
    """True for a number, but not for a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def given_to(step: dict[str, Any]) -> Any:
    """What a tool ran with. If several calls have one id, the step's input may be another call's."""
    return step.get("executed_input") or step.get("input")


def exit_of(step: dict[str, Any]) -> int | None:
    """The code with which the command of a step ended; ``None`` if it is not known, or the step ran no command."""
    return as_int(as_mapping(step.get("metadata")).get("exit"))


def has_failed(step: dict[str, Any]) -> bool:
    """True for a step that failed, or whose command ended with a code other than 0: every view shows it as failed."""
    return step.get("status") == "error" or bool(exit_of(step))


def first_text(values: dict[str, Any], *names: str) -> str:
    """The first named value that is a non-empty string; otherwise the empty string."""
    return next(filter(None, (as_text(values.get(name)) for name in names)), "")


def as_directory(value: object) -> str:
    """A directory. One of Windows has one spelling, however its drive, slashes and prefix are written."""
    text = as_text(value)
    match = _OF_WINDOWS.fullmatch(text)
    return text if match is None else f"{match[1].upper()}:\\" + "\\".join(filter(None, re.split(r"[\\/]", match[2])))


_OF_WINDOWS: Final = re.compile(r"(?:[\\/]{2}[?.][\\/])?([A-Za-z]):((?:[\\/].*)?)", re.DOTALL)


def is_forgotten(payload: dict[str, Any]) -> bool:
    """True if only the digest of the payload is left."""
    return set(payload) == {"$sha256"}


def is_said(part: dict[str, Any]) -> bool:
    """True for a text that is part of an input and was not added by OpenCode itself.

    Texts that OpenCode adds are marked as synthetic. The sidecar's messages are marked as synthetic, too, but a model
    answers them.
    """
    is_ours = "durable_stream" in as_mapping(part.get("metadata"))
    return part.get("type") == "text" and (is_ours or not part.get("synthetic"))
