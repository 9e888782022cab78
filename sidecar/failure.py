"""What ends a command of the command line, wherever it is found out."""

from __future__ import annotations

from streams.errors import CodedError


class Failure(CodedError):
    """A command failed; the text says what happened, to what, and what to do next.

    ``code`` is one of the codes listed in docs/operations.md.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code  # type: ignore[misc]
