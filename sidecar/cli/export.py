"""``export``: one family of streams as a file that another home can read."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from sidecar.cli.shared.arguments import StreamArgument
from sidecar.cli.shared.command import Failure, JsonFlag, complain, home_of

if TYPE_CHECKING:
    from sidecar.views.select import Family
    from streams.log.reader import LogReader

FORMAT = 1


async def export(
    context: typer.Context,
    stream: StreamArgument,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write here, a new file; else to stdout.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Write a stream, and all that belongs to it, to a file.

    JSON lines, with or without ``--json``: a header, then the records.
    """
    from sidecar.views.select import family_of, find_stream, open_reader
    from streams.log.directory import read_manifest

    store = home_of(context).store_path
    reader = open_reader(store)
    stream = await find_stream(reader, stream)
    family = await family_of(reader, stream)
    manifest = read_manifest(store)
    log_id = manifest.log_id if manifest is not None else None
    if output is None:
        sys.stdout.flush()
        await _write(reader, family, log_id, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return
    try:
        # What agents saw and wrote is the user's alone, as in the home.
        file = open(output, "xb", opener=_private)  # noqa: SIM115, ASYNC230 - closed below, removed on failure
    except FileExistsError:
        raise Failure("exists", f"{output} is already there and is not overwritten; choose another --output") from None
    try:
        with file:
            count = await _write(reader, family, log_id, file)
    except BaseException:
        output.unlink(missing_ok=True)  # half an export looks like a whole one
        raise
    complain(f"wrote {count} records of {len(family.streams)} stream{'s'[: len(family.streams) != 1]} to {output}")


async def _write(reader: LogReader, family: Family, log_id: object, file: IO[bytes]) -> int:
    from sidecar.cli.shared.output import json_line
    from sidecar.views.select import records_of
    from streams.identity import system_identity

    # The header counts the records, so what arrives meanwhile stays out.
    head = reader.head
    count = 0
    async for _ in records_of(reader, family, up_to=head):
        count += 1
    header = {
        "durable_stream_export": FORMAT,
        "stream_id": family.stream,
        "streams": sorted(family.streams, key=lambda name: (name != family.stream, name)),
        "records": count,
        "log_id": log_id,
        "exported_ms": system_identity().now_ms(),
    }
    file.write(json_line(header))
    async for record in records_of(reader, family, up_to=head):
        file.write(json_line(record.as_json()))
    return count


def _private(path: str, flags: int) -> int:
    import os

    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
