"""Which directories are not recorded: ``[capture] exclude``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


class Exclusion:
    """The excluded directories, both as configured and with links resolved, because OpenCode may report a path through
    a link.

    The real paths are looked up once for each directory.
    """

    def __init__(self, excluded: Iterable[Path]) -> None:
        self._excluded = {form for path in excluded for form in (path, path.resolve())}
        self._known: dict[str, bool] = {}

    def covers(self, directory: str) -> bool:
        """True if ``directory`` or a directory above it is excluded."""
        if not self._excluded or not directory:
            return False
        known = self._known.get(directory)
        if known is None:
            path = Path(directory)
            forms = {place for form in (path, path.resolve()) for place in (form, *form.parents)}
            known = self._known[directory] = bool(forms & self._excluded)
        return known
