"""What a report is worth if another comes at the same time, or if its card cannot be read. Real server."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from bridge.nats.jetstream.connection import JetStream
from bridge.nats.jetstream.publishing import publish
from bridge.nats.jetstream.sessions import Sessions
from bridge.nats.jetstream.wire import Message
from bridge.nats.l0.calls import card_id
from sidecar.mirror.remote_tools import card_content
from tests.sidecar.mirror.test_calling import owner, report, sent, settled


@pytest.mark.parametrize("first", ["success", "failed"])
async def test_the_report_that_was_sent_first_wins(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    async with owner(sessions) as home:
        await home.call()
        payload, headers = await sent(sessions)
        delays = iter((0.2, 0.0))

        async def slowly(session: JetStream, card: str) -> object:
            await asyncio.sleep(next(delays))  # the server answers the second request first
            return await card_content(session, card)

        monkeypatch.setattr("sidecar.mirror.calling.card_content", slowly)
        for status in (first, "failed" if first == "success" else "success"):
            await report(sessions, payload, headers, status=status, result=status)
        (result,) = await home.results()
        await settled(home, 2)
        assert result["type"] == f"effect.{'completed' if first == 'success' else 'failed'}"
        assert [one.event.payload["status"] for one in await home.of("tool.reported")] == [first]
        (late,) = await home.of("tool.refused")
        assert late.event.payload["error_code"] == "late"


@pytest.mark.parametrize("status", ["success", "failed", "partial"])
@pytest.mark.parametrize("card", ["none", "nonsense", "MESHFORGE_EVENTS:", "MESHFORGE_EVENTS:99999", "text"])
async def test_a_report_whose_card_cannot_be_read_is_refused_and_the_call_waits_on(
    sessions: Sessions, card: str, status: str
) -> None:
    async with owner(sessions) as home:
        await home.call()
        payload, headers = await sent(sessions)
        if card == "text":
            kept = await publish(await sessions.get(), Message("evt._.words.counter.tool.result", {}, b"no JSON"))
            card = card_id(kept.sequence)
        await report(sessions, payload, headers, status=status, tool_result_card_id=card)
        await settled(home, 1)
        (refused,) = await home.of("tool.refused")
        assert refused.event.payload["error_code"] == "no-card" and not await home.of("tool.reported")
        await report(sessions, payload, headers, result=orjson.loads(b'{"words": 2}'))
        assert (await home.results())[0]["result"] == {"words": 2}
