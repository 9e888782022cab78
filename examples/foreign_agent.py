"""The agent ``scout`` in a program of its own: takes commands, has a tool count words, answers. With `nats-py` only."""

import asyncio
import json
import sys
import time
import uuid

import nats
from nats.js.api import AckPolicy, ConsumerConfig

NAME, TOOL, DEEPEST = "scout", "cmd.tool.words.count", 20
CHAIN = (
    "traceparent",
    "tracestate",
    "CG-User-ID",
    "CG-Channel-ID",
    "CG-Context-ID",
)  # stays the same in all that follows


class Scout:
    def __init__(self, stream):
        self.stream, self.calls = stream, {}

    async def send(self, subject, kind, body, chain, depth):
        about = {
            "CG-Timestamp": str(time.time_ns() // 10**6),
            "CG-Version": "v1",
            "CG-Msg-Type": kind,
            "CG-Sender": NAME,
        }
        headers = {**chain, **about, "CG-Recursion-Depth": str(depth)}
        return (await self.stream.publish(subject, json.dumps(body).encode(), headers=headers)).seq

    async def take(self, message):
        _, project, workspace, _, kind = message.subject.split(".", 4)
        body, came = json.loads(message.data), message.headers or {}
        if kind == "inbox.tool_result":
            call = self.calls.get((body["agent_turn_id"], body["tool_call_id"]))
            if call and not call.done() and body["status"] != "partial":
                call.set_result(body)
        elif not kind.startswith("inbox."):
            turn = body.get("correlation_id") or came.get("Nats-Msg-Id") or uuid.uuid4().hex
            await self.work(project, workspace, turn, body.get("payload", body), came)
        await message.ack()  # not before: if this program ends, the command comes again

    async def work(self, project, workspace, turn, payload, came):
        chain = {"traceparent": f"00-{uuid.uuid4().hex}-{uuid.uuid4().hex[:16]}-01"}
        chain |= {name: came[name] for name in CHAIN if name in came}
        depth, events = int(came.get("CG-Recursion-Depth", 0)), f"cg.v1.{project}.public.evt.agent.{NAME}"
        about = {"agent_id": NAME, "agent_turn_id": turn, "turn_epoch": 0}
        state = {**about, "status": "running", "updated_at": time.time_ns() // 10**6}
        await self.send(f"{events}.state", "agent.state", state, chain, depth)
        end = {"agent_turn_id": turn, "status": "failed", "error_code": "recursion_depth_exceeded"}
        if depth + 1 < DEEPEST:  # a call is one deeper than the command that led to it
            args = {"payload": {"args": {"text": payload["text"]}}}
            card = await self.send(f"evt.{project}.{NAME}.{NAME}.tool.call", "tool.call", args, chain, depth + 1)
            call = {**about, "tool_call_id": uuid.uuid4().hex, "tool_call_card_id": f"MESHFORGE_EVENTS:{card}"}
            waiting = self.calls[turn, call["tool_call_id"]] = asyncio.get_running_loop().create_future()
            await self.send(f"cg.v1.{project}.public.{TOOL}", "tool_command", call, chain, depth + 1)
            report = await waiting
            sequence = int(report["tool_result_card_id"].split(":")[1])
            result = json.loads((await self.stream.get_msg("MESHFORGE_EVENTS", sequence)).data)["result"]
            end = {"agent_turn_id": turn, **{name: report[name] for name in ("status", "tool_result_card_id")}}
            if "DS-Log" in came:  # an agent of a home has sent the command
                answer = f"cmd.{project}.{workspace}.{came['CG-Sender']}.counted"
                await self.send(answer, "counted", {"payload": {"result": result}}, chain, depth + 1)
        await self.send(f"{events}.task", "agent.task", end, chain, depth)
        await self.send(f"{events}.state", "agent.state", {**state, "status": "idle"}, chain, depth)


async def main(server, token=None):
    stream = (await nats.connect(server, token=token)).jetstream()
    config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, ack_wait=120)
    inbox = await stream.pull_subscribe(f"cmd.*.*.{NAME}.>", f"{NAME}_consumer", "MESHFORGE_COMMANDS", config=config)
    scout, working = Scout(stream), set()
    while True:
        try:
            working |= {asyncio.create_task(scout.take(message)) for message in await inbox.fetch(8, timeout=5)}
        except TimeoutError:
            working = {task for task in working if not task.done()}


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
