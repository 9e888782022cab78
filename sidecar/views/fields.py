"""Fields of a payload that may be missing or of another type. Pure."""

from __future__ import annotations

from typing import Any


def as_mapping(value: Any) -> dict[str, Any]:
    """``value`` if it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """``value`` if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def as_strings(value: Any) -> list[str]:
    """The strings in ``value`` if it is a list."""
    return [one for one in as_list(value) if isinstance(one, str)]


def as_int(value: Any) -> int | None:
    """``value`` as a whole number if it is a number."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if is_number and abs(value) < 2**53 else None
