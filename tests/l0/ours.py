"""Durable Stream as an implementation of the protocol: one real home with one agent, on an external server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
from nats.js import JetStreamContext

from bridge.opencode.link.frames import HookItem
from sidecar.link.client import ShimClient
from streams.identity import system_identity
from tests.l0.peer import HANG_S
from tests.sidecar.support import RECORDINGS
from tests.torture.sidecars import RunningSidecar, ask, shim

AGENT = """
class Clerk:
    name = "clerk"

    def __init__(self):
        self.results = 0

    def receive(self, event):
        args = event["payload"].get("args", {})
        if event["type"] == "call":
            return [{"effect": "count", "payload": args}]
        if event["type"] == "internal":
            return [{"effect": "signal", "payload": args}]
        if event["type"] == "tell":
            return [{"to": "far", "type": "told", "payload": {}}]
        if event["type"].startswith("effect."):
            return [{"type": "clerk.result", "payload": {}}]
        return []

    def apply(self, event):
        self.results += event["type"] == "clerk.result"
"""

CONFIG = """
[nats]
mode = "external"
servers = ["{server}"]

[worker]
agents = ["agents/clerk.py:Clerk"]
ui_allowed = ["signal"]
internal_allowed = ["signal"]

[worker.tools.count]
target_subject = "cmd.tool.words.count"
may_end_turn = true

[worker.tools.signal]
target_subject = "cmd.sys.pmo.internal.signal"
"""


class Ours:
    agent, tool, internal_tool, max_depth = "clerk", "cmd.tool.words.count", "cmd.sys.pmo.internal.signal", 20
    ui_tool, dead = "signal", "MESHFORGE_DLQ"
    queues = (
        ("MESHFORGE_COMMANDS", "cmd.*.*.clerk.>"),
        ("cg_cmd_v1", "cg.v1.*.*.cmd.agent.clerk.wakeup"),
        ("cg_cmd_v1", "cg.v1.*.*.cmd.sys.>"),
    )

    def __init__(self, server: str, home: RunningSidecar) -> None:
        self.server, self._home = server, home
        self.ui_args = self.internal_args = {"name": "noon", "payload": {}}

    def order(self, what: str, **fields: Any) -> tuple[str, bytes]:
        known = {name: fields.pop(name) for name in ("correlation_id", "mode") if name in fields}
        if "key" in fields:
            known["idempotency_key"] = fields.pop("key")
        return f"cmd.shop.main.{self.agent}.{what}", orjson.dumps({"payload": fields, **known})

    def orders_for(self, agent: str) -> tuple[str, str]:
        return "MESHFORGE_COMMANDS", f"cmd.*.*.{agent}.>"

    def inbox(self, kind: str) -> str:
        return f"cmd.shop._.{self.agent}.inbox.{kind}"

    async def put(self, stream: JetStreamContext, result: Any) -> str:
        kept = await stream.publish("evt.shop.words.clerk.tool.result", orjson.dumps({"result": result}))
        return f"MESHFORGE_EVENTS:{kept.seq}"

    async def get(self, stream: JetStreamContext, card: str) -> Any:
        name, _, number = card.partition(":")
        return json.loads((await stream.get_msg(name, int(number))).data or b"")["payload"]["args"]

    async def put_args(self, stream: JetStreamContext, args: dict[str, Any]) -> str:
        kept = await stream.publish("evt.shop.words.clerk.tool.call", orjson.dumps({"payload": {"args": args}}))
        return f"MESHFORGE_EVENTS:{kept.seq}"

    async def deeds(self, stream: JetStreamContext) -> int:
        async with asyncio.timeout(HANG_S):
            while (await ask(self._home, "mirror"))["lag"]:  # a turn's messages come before the records of their batch
                await asyncio.sleep(0.01)
        info = await stream.stream_info("MESHFORGE_EVENTS", subjects_filter="evt.*.*.agent%2Fmessages.signal.raised")
        return sum((info.state.subjects or {}).values())

    async def stream(self) -> None:
        lines = [json.loads(line) for line in (RECORDINGS / "chat.jsonl").read_bytes().splitlines()]
        nonce = system_identity().nonce
        async with await ShimClient.connect(self._home.home, identity=shim(), nonce=nonce) as client:
            for line in lines:
                item = HookItem(line["hook"], line["t"], line.get("input"), line.get("output"))
                if '"message.part.delta"' in json.dumps(line):
                    client._link.send_lossy([item])
                    await client._flush()
                elif not line["hook"].startswith("__"):
                    await client.send([item])
                    await client.drained()


@contextmanager
def start(server: str, directory: Path) -> Iterator[Ours]:
    """The implementation at work."""
    one = RunningSidecar(directory / "home")
    (one.home.path / "agents").mkdir()
    (one.home.path / "agents" / "clerk.py").write_text(AGENT)
    one.home.config_path.write_text(CONFIG.format(server=server))
    try:
        one.start()
        yield Ours(server, one)
        assert one.lives and one.stop() == 0, one.complaints()
    finally:
        one.close()
