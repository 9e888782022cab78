"""Carries out a tool for agents of any home, with the client library `nats-py` alone.

An agent's home sends a call on ``cmd.tool.words.count``. The call points at the mirrored record that holds the
arguments. The result is a message of its own, and the report to the agent's inbox points at that message.
"""

import asyncio
import json
import sys

import nats
from nats.js.api import AckPolicy, ConsumerConfig

SUBJECT = "cg.v1.*.*.cmd.tool.words.count"
DURABLE = "cmd%2Etool%2Ewords%2Ecount_consumer"  # the one that homes use, too; a queue gives each call to one consumer
PASSED_ON = ("traceparent", "tracestate", "CG-Recursion-Depth")


def count(args):
    return {"words": len(args["text"].split())}


async def handle(stream, message):
    call = json.loads(message.data)
    card = await stream.get_msg("MESHFORGE_EVENTS", int(call["tool_call_card_id"].split(":")[1]))
    result = count(json.loads(card.data)["payload"]["args"])
    headers = {name: value for name, value in (message.headers or {}).items() if name in PASSED_ON}
    project, agent = message.subject.split(".")[2], call["agent_id"]
    body = json.dumps({"result": result}).encode()
    kept = await stream.publish(f"evt.{project}.words.{agent}.tool.result", body, headers=headers)
    report = {name: call[name] for name in ("tool_call_id", "agent_turn_id", "turn_epoch", "agent_id")}
    report |= {"status": "success", "after_execution": "suspend", "tool_result_card_id": f"MESHFORGE_EVENTS:{kept.seq}"}
    await stream.publish(f"cmd.{project}._.{agent}.inbox.tool_result", json.dumps(report).encode(), headers=headers)
    await message.ack()


async def main(server, token=None):
    connection = await nats.connect(server, token=token)
    stream = connection.jetstream()
    config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, ack_wait=30)
    calls = await stream.pull_subscribe(SUBJECT, durable=DURABLE, stream="cg_cmd_v1", config=config)
    while True:
        try:
            for message in await calls.fetch(1, timeout=5):
                await handle(stream, message)
        except TimeoutError:
            continue


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
