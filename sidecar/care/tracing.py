"""Sends spans to an OpenTelemetry receiver as they end: a reader of the log with a position of its own.

The position is saved once the receiver has accepted what ended before it. After a crash, the same spans with the same
ids may be sent again, and none is left out. The log is the queue, so a receiver that is away costs no memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import orjson

from sidecar.components import in_background
from sidecar.home import Home
from sidecar.notify_config import OtelConfig
from sidecar.read.past.traces import otlp_request
from sidecar.read.story.ended_spans import ended
from sidecar.read.story.reading import Snapshot, ask
from streams.errors import StreamError
from streams.log.reader import LogReader
from streams.store import NOTHING, StreamStore
from streams.system.files import write_durably
from streams.system.retry import Retry

log = logging.getLogger("sidecar.care.tracing")

LOOK_SECONDS: Final = 1.0
"""How often new records are looked for, so that one request has all that ended in this time."""

RETRY: Final = Retry(1.0, 60.0)
ANSWER_SECONDS: Final = 10.0

MOST_SPANS: Final = 512
MOST_RECORDS: Final = 2000
"""How many spans one request has, and how many records are read for it. The last record may end some more."""

REFUSED: Final = frozenset({400, 413, 422})
"""Answers to spans that the receiver will never accept. After any other, they are sent again."""


class Tracing:
    """A component: the export of ``[otel]``, which has an endpoint. Import this file only then."""

    def __init__(self, home: Home, config: OtelConfig, store: StreamStore, log_id: str) -> None:
        self._path, self._config, self._store, self._log_id = home.otel_path, config, store, log_id
        self._address = f"{config.endpoint.rstrip('/')}/v1/traces"
        self._reader = LogReader(home.store_path)
        self._position: int | None = None
        """All that ended up to here is sent; ``None`` before the file was read."""
        self._begun = self._saved = NOTHING
        self._counts: Counter[str] = Counter()
        self._problem = ""

    async def start(self, stack: AsyncExitStack) -> None:
        """See ``Component``. The first time, the export begins at the end of the log."""
        self._begun = self._store.head
        client = httpx.AsyncClient(
            headers={name: value.get_secret_value() for name, value in self._config.headers.items()},
            timeout=ANSWER_SECONDS,
            trust_env=not self._config.is_local,  # this machine is never reached through a proxy
        )
        stack.push_async_callback(self._reader.close)
        in_background(stack, self._run(await stack.enter_async_context(client)))

    def owes(self) -> bool:
        """Always false, because the next sidecar goes on at the saved position."""
        return False

    def status(self) -> dict[str, Any]:
        """``position``, ``lag`` (records), ``sent`` and ``refused`` (spans), ``failures`` (requests), ``problem``."""
        counts = {name: self._counts[name] for name in ("sent", "refused", "failures")}
        position = self._begun if self._position is None else self._position
        return {"position": position, "lag": max(self._store.head - position, 0), **counts, "problem": self._problem}

    def _load(self) -> int:
        """The saved position, or else the end of the log at the start."""
        if self._path.exists():
            try:
                found = orjson.loads(self._path.read_bytes())
                if found["log"] == self._log_id and found["position"] <= self._begun:
                    return int(found["position"])
                log.warning("%s is about another log, so traces begin at the end of this one", self._path)
            except (ValueError, TypeError, KeyError):
                log.warning("%s is damaged, so traces begin at the end of the log", self._path)
        self._save(self._begun)
        return self._begun

    def _save(self, position: int) -> None:
        write_durably(self._path, orjson.dumps({"log": self._log_id, "position": position}))
        self._saved = position

    async def _run(self, client: httpx.AsyncClient) -> None:
        failures = 0
        while True:
            try:
                if self._position is None:
                    self._position = await asyncio.to_thread(self._load)
                while self._store.head > self._position:
                    if not await self._advance(client, self._position):
                        break  # the tables are being made again
                self._problem, failures = "", 0
                await asyncio.sleep(LOOK_SECONDS)
            except Exception as error:  # noqa: BLE001 - say it instead of ending silently; recording goes on
                # An unexpected error may quote what it could not handle, so only its type is shown.
                known = isinstance(error, StreamError | OSError)
                self._failed(str(error) if known else f"{type(error).__name__} in the export")
                failures += 1
                await asyncio.sleep(RETRY.pause(failures))

    async def _advance(self, client: httpx.AsyncClient, after: int) -> bool:
        """Send what ended after a position, and save up to where; false if no record after it can be read yet."""
        spans, position = await self._read(after)
        if spans:
            await self._deliver(client, spans)
        if spans or position - self._saved >= MOST_RECORDS:
            await asyncio.to_thread(self._save, position)
        self._position, self._problem = position, ""
        return position > after

    async def _read(self, position: int) -> tuple[list[dict[str, Any]], int]:
        """What ended after a position, and up to where."""

        def read_spans(story: Snapshot) -> tuple[list[dict[str, Any]], int]:
            until = min(position + MOST_RECORDS, story.head)
            return ended(story, position, until, MOST_SPANS) if until > position else ([], position)

        return await ask(self._reader, read_spans)

    async def _deliver(self, client: httpx.AsyncClient, spans: list[dict[str, Any]]) -> None:
        """Send spans until the receiver has accepted them, or will never do."""
        body, failures = orjson.dumps(otlp_request(spans)), 0
        while (fault := await self._send(client, body, len(spans))) is not None:
            self._failed(f"{urlsplit(self._address).netloc} {fault}")
            failures += 1
            await asyncio.sleep(RETRY.pause(failures))

    async def _send(self, client: httpx.AsyncClient, body: bytes, count: int) -> str | None:
        """Send one request; returns why it must be sent again."""
        headers = {"content-type": "application/json"}
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = await client.post(self._address, content=body, headers=headers)
        except (OSError, ValueError, httpx.HTTPError, httpx.InvalidURL) as error:
            return f"cannot be reached ({type(error).__name__})"
        if answer.status_code in REFUSED:
            refused = count
        elif answer.is_success:
            refused = min(_refused(answer.content), count)
        else:
            return f"answers with status {answer.status_code}"
        self._counts["sent"] += count - refused
        if refused:
            self._counts["refused"] += refused
            log.warning("the receiver of traces refused %d spans (status %d)", refused, answer.status_code)
        return None

    def _failed(self, problem: str) -> None:
        if problem != self._problem:
            log.warning("traces wait: %s", problem)
        self._problem = problem
        self._counts["failures"] += 1


def _refused(content: bytes) -> int:
    """How many spans of an accepted request the receiver refused."""
    try:
        return max(int(orjson.loads(content)["partialSuccess"]["rejectedSpans"]), 0)
    except (ValueError, TypeError, KeyError):
        return 0
