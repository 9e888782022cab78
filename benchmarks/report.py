"""What ``make bench`` prints."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """A rate and the limit it is held against; ``floor`` 0 means that nothing is promised yet."""

    label: str
    rate: float
    limit: float
    unit: str
    floor: float
    aim: float

    @property
    def ratio(self) -> float:
        return self.rate / self.limit

    @property
    def verdict(self) -> str:
        if not self.floor:
            return ""
        return "aim met" if self.ratio >= self.aim else "floor met" if self.ratio >= self.floor else "BELOW FLOOR"


def table(rows: list[Row]) -> str:
    """The rows as aligned text."""
    lines = [f"{'path':38} {'rate':>10} {'limit':>10}  {'ratio':>6}  {'floor':>6} {'aim':>5}"]
    for row in rows:
        promise = f"{row.floor:>6g} {row.aim:>5g}" if row.floor else f"{'':6} {'':5}"
        measured = f"{row.label:38} {row.rate:>8.0f}/s {row.limit:>8.0f}/s  {row.ratio:>6.2f}"
        lines.append(f"{measured}  {promise}  × {row.unit:12} {row.verdict}".rstrip())
    return "\n".join(lines)
