"""A process that is one of two machines, and kills itself at a named step."""

from __future__ import annotations

import asyncio
import logging
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from bridge.nats.jetstream.bus import JetStreamEventBus
from bridge.nats.jetstream.options import ConnectOptions, PullSettings
from bridge.nats.jetstream.sessions import Sessions
from bridge.opencode.link.protocol import RequestError
from sidecar.mirror.actions import Deeds
from sidecar.mirror.asking import Asks, ForOthers
from sidecar.mirror.machines import Machines
from streams.identity import system_identity
from streams.log.log import Log
from streams.system.retry import Retry
from tests.sidecar.mirror.killed_process import append, killing, lines

ASKER: Final = "laptop"
WORKER: Final = "desk"
SETTINGS: Final = PullSettings(fetch_timeout_s=1.0, heartbeat_s=0.2, ack_wait_s=0.5, retry=Retry(0.01, 1.0))


class Place(NamedTuple):
    """A step of one of the two."""

    machine: str
    part: Literal["machines", "bus"]
    point: str


PLACES: Final = (
    *(Place(ASKER, "machines", each) for each in ("before-send", "after-send", "returned")),
    *(Place(WORKER, "machines", each) for each in ("asked", "done", "before-answer", "after-answer")),
    *(Place(each, "bus", point) for each in (ASKER, WORKER) for point in ("pulled", "before-ack", "after-ack")),
)


class Request(NamedTuple):
    """``cancel`` has no key: it is refused if it was done before."""

    name: str
    number: int


def run(
    path: Path, machine: str, options: ConnectOptions, place: Place | None, requests: list[Request], report: Connection
) -> None:
    """Report the answers to these requests, once all are there; without requests, work until killed."""
    logging.getLogger("sidecar").setLevel(logging.CRITICAL)
    report.send(asyncio.run(_run(path, machine, options, place, requests)))


async def _run(
    path: Path, machine: str, options: ConnectOptions, place: Place | None, requests: list[Request]
) -> list[dict[str, Any]]:
    def stop(part: str) -> Any:
        is_mine = place is not None and (place.machine, place.part) == (machine, part)
        return killing(place.point if place is not None and is_mine else None, 1)  # type: ignore[arg-type]

    async def given() -> ConnectOptions:
        return options

    async def do(asker: str, name: str, args: dict[str, Any]) -> Any:
        line = f"{name} {args['number']} {args.get('key', '-')}"
        if line in lines(path / "done"):
            if name == "cancel":
                raise RequestError("has-ended", "it has ended")
            return {"id": line}
        append(path / "done", line)
        return {"id": line}

    identity = system_identity()
    store = await Log.open(path / machine, identity)
    sessions = Sessions(given)
    asks = Asks(store, identity, lambda value: value)
    await asks.start()
    bus = JetStreamEventBus(sessions, SETTINGS, log_id=store.manifest.log_id, stop=stop("bus"))
    others = ForOthers(asks, {ASKER: ("spawn", "cancel")}, do, do)
    deeds = lambda does: Deeds(store, identity, does, lambda value: value)  # noqa: E731
    running = asyncio.create_task(Machines(machine, bus, others, deeds, stop("machines")).run())
    if not requests:
        await asyncio.Event().wait()
    async with asyncio.timeout(60):
        ids = [await asks.send(WORKER, each.name, {"number": each.number}, f"{each.number}") for each in requests]
        answers = [await asks.answer(each, 60) for each in ids]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await sessions.close()
    await store.close()
    return [answer or {} for answer in answers]
