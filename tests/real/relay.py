"""Pass connections on: relay.py FROM TO, each a port on this machine or the path of a Unix socket."""

from __future__ import annotations

import asyncio
import sys


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError as error:
        print(f"relay: {error}", file=sys.stderr)
    writer.close()


async def relay(source: str, target: str) -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if target.isdigit():
            there, back = await asyncio.open_connection("127.0.0.1", int(target))
        else:
            there, back = await asyncio.open_unix_connection(target)
        await asyncio.gather(_pass(reader, back), _pass(there, writer))

    if source.isdigit():
        server = await asyncio.start_server(accept, "127.0.0.1", int(source))
    else:
        server = await asyncio.start_unix_server(accept, source)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(relay(*sys.argv[1:3]))
