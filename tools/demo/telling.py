"""How a demo tells its story: who does what, line by line."""

from __future__ import annotations

import textwrap

from rich.console import Console


class Teller:
    """Prints a story's lines; ``columns`` is the width of the names."""

    def __init__(self, console: Console, columns: int = 10) -> None:
        self.console, self._columns = console, columns

    def say(self, who: str, text: str, style: str = "") -> None:
        """Who does what."""
        width = self.console.width - self._columns - 3 if self.console.is_terminal else max(len(text), 1)
        for row, line in enumerate(textwrap.wrap(text, width)):
            name = f"  {who if row == 0 else '':{self._columns}}"
            self.console.print(name, line, style=style, highlight=False, markup=False, soft_wrap=True)

    def mark(self, text: str, style: str) -> None:
        """Something that happens to all of them."""
        self.console.print(f"──── {text} ────", style=style, highlight=False, markup=False)

    def sums(self, rows: dict[str, int]) -> None:
        """Counts, between two empty lines."""
        width = max(map(len, rows)) + 2
        self.console.print()
        for name, count in rows.items():
            self.console.print(f"  {name:{width}}{count}")
        self.console.print()

    def end(self, held: bool, good: str) -> None:
        """The last lines: whether all that must hold did."""
        if held:
            self.console.print(good, style="bold green")
            self.console.print("To record your own sessions, see “Install” in README.md.")
        else:
            self.console.print("This must not happen: please report it, with the output above.", style="bold red")
