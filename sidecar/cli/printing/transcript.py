"""Makes a transcript of a stream and writes it in the requested format."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from sidecar.failure import Failure
from sidecar.read.wording import printable

if TYPE_CHECKING:
    from sidecar.read.redacted import Redaction
    from sidecar.read.story.past import Named, Past
    from sidecar.read.transcript.model import Reading, Session
    from streams.log.reader import LogReader

_ENDINGS = {
    ".md": "markdown",
    ".markdown": "markdown",
    ".html": "html",
    ".htm": "html",
    ".json": "json",
    ".jsonl": "json",
}


def format_of(given: str | None, output: Path | None) -> str:
    """The format to write: the given format, or else the format that the file's ending selects, or else Markdown."""
    return given or _ENDINGS.get(output.suffix.lower() if output is not None else "", "markdown")


def is_ending(output: Path) -> bool:
    return output.suffix.lower() in _ENDINGS


def redaction_of(*, wanted: bool) -> Redaction | None:
    """What leaves out the names of directories, if that is wanted."""
    from sidecar.read.redacted import Redaction

    return Redaction(str(Path.home())) if wanted else None


async def conversation_of(
    reader: LogReader, about: Named, redaction: Redaction | None = None
) -> tuple[list[Session], str]:
    """The top-level sessions of what a person named, and their proof."""
    from sidecar.read.story.conversation import Telling
    from sidecar.read.story.past import asked

    def render(past: Past) -> tuple[list[Session], str]:
        shown = past if redaction is None else redaction.past(past)
        return Telling(shown.at()).whole(), proof_of(past)

    return await asked(reader, render, about)


def proof_of(past: Past) -> str:
    """What was shown: the stream, and the position and the hash of its last record; empty if there is none."""
    moment = past.at()
    ends = [moment.one("moment", "session = :s AND n <= :n ORDER BY n DESC", s=key) for key in moment.all]
    own = [end.n for end in ends if end is not None and end.place == moment.places.get(past.stream)]
    if not own:
        return ""
    last = moment.record(max(own))
    return f"{past.stream} up to position {last.position} of its log, with the hash {last.hash}"


async def notes_of(reader: LogReader, stream: str) -> tuple[str, ...]:
    """The notes for the top of the transcript: that its beginning was pruned, and what was lost in it."""
    from sidecar.read.find_by_id import catalog_of, pruned_text

    gone = (await reader.removed()).get(stream)
    pruned = pruned_text(stream, gone) if gone is not None else None
    catalog, _ = await catalog_of(reader)
    losses = (f"something was lost in {text}" for text in catalog.loss_texts({stream}))
    own = catalog.own_session(stream)
    origin = own.fork if own is not None else None
    fork = [f"This session is a fork of {origin}, which holds what was said before."] if origin else []
    return (*fork, *([pruned] if pruned is not None else ()), *losses)


def transcript_bytes(roots: list[Session], reading: Reading, form: str) -> Iterator[bytes]:
    """The transcript as ``markdown``, ``html`` or ``json``, a line or more at a time."""
    if form == "json":
        from sidecar.cli.printing.output import json_line

        yield from map(json_line, roots)
        return
    lines: Iterable[str]
    if form == "html":
        from sidecar.read.transcript.html import html_lines

        lines = html_lines(roots, reading)
    else:
        from sidecar.read.transcript.markdown import markdown_lines

        lines = markdown_lines(roots, reading)
    for line in lines:
        # The texts are already harmless. ``printable`` is a second safeguard, for a file shown in a terminal.
        yield f"{printable(line)}\n".encode(errors="replace")


@contextmanager
def written_to(output: Path | None) -> Iterator[IO[bytes]]:
    """Stdout, or a new file that only its owner can read. The file is removed if it cannot be completed.

    Raises:
        Failure: the file already exists.
    """
    if output is None:
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        # Only the user may read the file, because it shows what agents saw and wrote.
        file = open(output, "xb", opener=_private)  # noqa: SIM115 - closed below, removed on failure
    except FileExistsError:
        raise Failure("exists", f"{output} already exists and is not overwritten; choose another `--output`") from None
    try:
        with file:
            yield file
    except BaseException:
        output.unlink(missing_ok=True)  # a partial file would look like a complete one
        raise


def _private(path: str, flags: int) -> int:
    import os

    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
