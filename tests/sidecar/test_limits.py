"""The limits of ``[store]``, which a running sidecar enforces."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Sequence

from sidecar.home import Home
from streams.event import StreamEvent
from streams.identity import system_identity
from streams.log.reader import LogReader
from tests.sidecar import life
from tests.sidecar.cli.helpers import append, run
from tests.sidecar.support import running, wait_for
from tests.streams.builders import event

DAY_MS = 86_400_000
LOOKING_OFTEN = (
    sys.executable,
    "-c",
    "from sidecar.care import upkeep; upkeep.LOOK_SECONDS, upkeep.PRUNE_SECONDS = 0.05, 0.1; "
    "from sidecar.cli import main; main()",
)
"""A sidecar that looks after its log often."""


def record(home: Home, batches: Sequence[Sequence[StreamEvent]]) -> None:
    asyncio.run(append(home.store_path, batches))


def of(stream: str, days: float, *, records: int = 5, text: str = "") -> list[StreamEvent]:
    """Records of a stream, ``days`` old."""
    ts = system_identity().now_ms() - round(days * DAY_MS)
    return [event(f"{stream}-{n}", stream=stream, ts=ts, payload={"text": text}) for n in range(records)]


def turn_under_way(stream: str, days: float) -> list[StreamEvent]:
    ts = system_identity().now_ms() - round(days * DAY_MS)
    created, started = {"session": stream}, {"session": stream, "message": "msg_1"}
    return [
        event(f"{stream}-made", type_="lifecycle.session.created", stream=stream, ts=ts, payload=created),
        event(f"{stream}-begun", type_="turn.started", stream=stream, ts=ts, payload=started),
    ]


def streams(home: Home) -> set[str]:
    async def read() -> set[str]:
        reader = LogReader(home.store_path)
        found = {record.event.stream_id async for record in reader.read_all()}
        await reader.close()
        return found

    return asyncio.run(read())


def serve_until_pruned(home: Home) -> None:
    life.start_as(LOOKING_OFTEN, home)
    running(home)
    wait_for(lambda: "pruned" in life.logged(home), "the log is pruned")
    assert run(home.path, "stop").code == 0


def test_what_is_too_old_goes_from_every_stream_but_never_from_an_open_turn(home: Home) -> None:
    home.config_path.write_text("[store]\nmax_age_days = 1\n")
    made = [of("ses_old", 40), of("system", 30), of("elsewhere", 20), of("ses_new", 0.5)]
    made += [of("ses_pinned", 40), [event("pin", stream="ses_pinned", type_="stream.pinned", ts=made[0][0].ts)]]
    record(home, [*made, turn_under_way("ses_busy", 2), turn_under_way("ses_stale", 8)])
    serve_until_pruned(home)
    assert streams(home) == {"ses_new", "ses_busy", "ses_pinned"}
    assert run(home.path, "verify").code == 0


def test_the_oldest_streams_go_until_the_log_is_small_enough(home: Home) -> None:
    home.config_path.write_text("[store]\nmax_bytes = 1800000\n")
    source = random.Random(1)
    big = {"records": 20, "text": source.randbytes(20_000).hex()}
    made = [of("system", 60), of("elsewhere", 50, **big), turn_under_way("ses_busy", 3)]  # type: ignore[arg-type]
    made += [of("ses_old", 40, **big), of("ses_late", 30), of("ses_new", 0.5, **big)]  # type: ignore[arg-type]
    record(home, made)
    serve_until_pruned(home)
    assert streams(home) == {"system", "ses_busy", "ses_late", "ses_new"}
    assert run(home.path, "verify").code == 0


def test_a_log_within_its_limits_stays(home: Home) -> None:
    home.config_path.write_text("[store]\nmax_bytes = 100000000\nmax_age_days = 100\n")
    record(home, [of("ses_old", 40)])
    life.start_as(LOOKING_OFTEN, home)
    running(home)
    found = wait_for(lambda: life.status(home)["sidecar"]["uptime_ms"] > 500, "it has looked several times")
    assert found and run(home.path, "stop").code == 0 and streams(home) == {"ses_old"}
    assert "pruned" not in life.logged(home) and run(home.path, "verify").code == 0
