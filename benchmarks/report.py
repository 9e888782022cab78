"""The output of ``make bench``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Row:
    """A figure and its comparison.

    With ``unit`` "R" or similar, ``value`` and ``limit`` are rates, and their ratio must be at least
    ``floor``. With ``unit`` "µs", "s" or "MiB", ``value`` is a time or a size, at most ``floor``; there is
    no limit. ``floor`` ``None``: nothing is promised.
    """

    label: str
    value: float
    limit: float | None
    unit: str
    floor: float | None = None
    aim: float | None = None
    interval: tuple[float, float] | None = None
    """Of the ratio, with 95% confidence."""
    is_peer: bool = False
    """True if compared with a peer: nothing is promised, but the verdict says which is faster."""

    @property
    def figure(self) -> float:
        """The ratio; without a limit, the value itself."""
        return self.value / self.limit if self.limit else self.value

    @property
    def verdict(self) -> Literal["", "aim met", "floor met", "BELOW FLOOR", "ahead", "behind"]:
        """How the figure compares with its floor and aim, or with its peer; empty if nothing is promised."""
        if self.is_peer:
            return "ahead" if self.figure > 1 else "behind"
        if self.floor is None or self.aim is None:
            return ""
        better = (lambda promise: self.figure >= promise) if self.limit else (lambda promise: self.figure <= promise)
        return "aim met" if better(self.aim) else "floor met" if better(self.floor) else "BELOW FLOOR"

    def as_json(self) -> dict[str, Any]:
        """The row as a plain object."""
        return {
            "path": self.label,
            "value": self.value,
            "limit": self.limit,
            "unit": self.unit,
            "figure": self.figure,
            "floor": self.floor,
            "aim": self.aim,
            "verdict": self.verdict,
        } | ({"interval": self.interval} if self.interval else {})


def ratio(row: dict[str, Any], mark: str = "") -> str:
    """A row's ratio, its interval and what it is compared with; ``mark`` surrounds the ratio."""
    interval = "[{:.2f}, {:.2f}] ".format(*row["interval"]) if "interval" in row else ""
    return f"{mark}{row['figure']:.2f}{mark} × {interval}{row['unit']}"


def table(rows: list[Row]) -> str:
    """The rows as aligned text."""
    lines = [f"{'path':58} {'measured':>12} {'limit':>10}  {'figure':>22}  {'floor':>7} {'aim':>6}"]
    for row in rows:
        if row.limit:
            digits = 0 if row.limit >= 100 else 2
            measured, limit = f"{row.value:,.{digits}f}/s", f"{row.limit:,.{digits}f}/s"
            figure = ratio(row.as_json())
        else:
            measured, limit, figure = f"{row.value:.3g} {row.unit}", "", ""
        promise = f"{row.floor:>7g} {row.aim:>6g}" if row.floor is not None else f"{'':7} {'':6}"
        lines.append(f"{row.label:58} {measured:>12} {limit:>10}  {figure:>22}  {promise}  {row.verdict}".rstrip())
    return "\n".join(lines)
