"""Two homes with one agent and three workers on one server: real processes, and the faults that tests give them."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import nats
from nats.js import JetStreamContext

from sidecar.agents.effects.runner import EffectKind
from sidecar.agents.runtime import Runtime
from streams.event import StreamEvent
from streams.identity import seeded_identity
from streams.log.reader import LogReader
from streams.store import Record
from tests.memory import MemoryStore
from tests.mirrors import unsynced
from tests.nats_servers import TOKEN, RealServer, real_server
from tests.sidecar.agents.support import agents, command
from tests.torture.figures import seeded
from tests.torture.sidecars import HANG_S, RunningSidecar, status

ACK_S = 1
"""After this time, a command that was not acknowledged is delivered again."""
AGENTS = '["agents/tally.py:Tally"]'
EXAMPLE = Path(__file__).parents[2] / "examples" / "tool_worker.py"
COUNT = """
[worker.tools.count]
target_subject = "cmd.tool.words.count"
description = "Counts the words of a text."
timeout_seconds = 600
args.text = {description = "the text"}
"""


class Tally:
    """Asks for the words of each text and each prompt; its state does not depend on their order."""

    name = "tally"
    events = ("human.input",)

    def __init__(self) -> None:
        self.words: dict[str, Any] = {}

    def receive(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        payload = event["payload"]
        if event["type"] in ("count", "human.input"):
            text = payload["text"] if "text" in payload else payload["parts"][0]["text"]
            return [{"effect": "count", "payload": {"text": text}}]
        if event["type"].startswith("effect."):
            told = {"run": event["correlation_id"], "result": payload.get("result")}
            return [{"type": "tally.counted", "payload": told}]
        return []

    def apply(self, event: dict[str, Any]) -> None:
        if event["type"] == "tally.counted":
            self.words[event["payload"]["run"]] = event["payload"]["result"]


TOOL = '''
import asyncio, json, os
from pathlib import Path

DONE, JOURNAL, WHO = Path({done!r}), Path({journal!r}), {who!r}
HELD = DONE.parent / "held"

def note(what, key):
    with JOURNAL.open("ab", buffering=0) as file:
        file.write(f"{{what}} {{WHO}} {{key}}\\n".encode())

async def count(args, key):
    """Do it once for each key, and give the same result each time."""
    note("begin", key)
    await asyncio.sleep(0.05)
    while HELD.exists():
        await asyncio.sleep(0.01)
    place = DONE / key.replace(":", "-")
    if not place.exists():
        draft = DONE.parent / f"{{WHO}}-{{place.name}}"
        draft.write_text(json.dumps({{"words": len(args["text"].split())}}))
        try:
            os.link(draft, place)
        except FileExistsError:
            pass
        draft.unlink()
    note("end", key)
    return json.loads(place.read_text())
'''

PLAIN = """
import asyncio, importlib.util, json, sys
sys.path.insert(0, {folder!r})
import words
spec = importlib.util.spec_from_file_location("tool_worker", {example!r})
example = importlib.util.module_from_spec(spec)
spec.loader.exec_module(example)
keys, plain = [], example.handle

class Result:
    pass

async def handle(stream, message):
    key = json.loads(message.data)["tool_call_id"]
    card = await stream.get_msg("MESHFORGE_EVENTS", int(json.loads(message.data)["tool_call_card_id"].split(":")[1]))
    result = await words.count(json.loads(card.data)["payload"]["args"], key)
    example.count = lambda args: result
    await plain(stream, message)

example.handle = handle
asyncio.run(example.main(*sys.argv[1:]))
"""


class Wire:
    """A way to the server that can be cut."""

    def __init__(self, server: RealServer) -> None:
        self._server, self._tasks, self.is_cut = server, set[asyncio.Task[None]](), False
        self._listening: asyncio.Server | None = None
        self.port = 0

    async def open(self) -> str:
        self._listening = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        self.port = self._listening.sockets[0].getsockname()[1]
        return f"nats://{TOKEN}@127.0.0.1:{self.port}"

    def cut(self) -> None:
        self.is_cut = True
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        self.cut()
        if self._listening is not None:
            self._listening.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        ends = [writer]
        try:
            if not self.is_cut:
                inward, outward = await asyncio.open_connection("127.0.0.1", self._server.port)
                ends.append(outward)
                async with asyncio.TaskGroup() as group:
                    group.create_task(_pump(reader, outward))
                    group.create_task(_pump(inward, writer))
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            for end in ends:
                end.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    raise ConnectionResetError


class Member:
    """A home on the server, with its own wire."""

    def __init__(self, path: Path, wire: Wire, address: str, **worker: Any) -> None:
        self.one, self.wire, self._address = RunningSidecar(path), wire, address
        (path / "agents").mkdir()
        self.configure(**worker)

    def configure(self, **worker: Any) -> None:
        lines = [f"{name} = {value}" for name, value in worker.items() if name != "tools"]
        text = f'link.scripts_may = ["claim"]\n[nats]\nmode = "external"\nservers = ["{self._address}"]\n'
        text += f"ack_wait_seconds = {ACK_S}\n[worker]\n" + "\n".join(lines)
        text += COUNT if "agents" in worker else "\n"
        self.one.home.config_path.write_text(text)

    async def start(self) -> None:
        await asyncio.to_thread(self.one.start)

    async def owned(self) -> dict[str, Any]:
        """The entry of ``tally``."""
        (row,) = [row for row in (await status(self.one))["nats"]["owned"] if row["agent"] == "tally"]
        return dict(row)

    async def records(self) -> list[Record]:
        """What ``tally`` did."""
        return [record for record in await self.log() if record.event.stream_id.startswith("agent/tally")]

    async def log(self) -> list[Record]:
        reader = LogReader(self.one.home.store_path)
        found = [record async for record in reader.read_all(after=-1)]
        await reader.close()
        return found


class World:
    """The server, the homes, the workers, and the commands that were sent."""

    def __init__(self, path: Path, server: RealServer) -> None:
        self.path, self.server, self.random = path, server, seeded("many homes")
        self.done, self.journal = path / "done", path / "journal"
        self.held = path / "held"
        """While this file exists, no call of the tool ends."""
        self.done.mkdir()
        self.journal.touch()
        self.sent = 0
        self.homes: list[Member] = []
        self.workers: list[Member] = []
        self.wires: list[Wire] = []
        self.plain: subprocess.Popen[bytes] | None = None

    async def build(self) -> None:
        (self.path / "plain").mkdir()
        (self.path / "plain" / "words.py").write_text(self._tool("plain"))
        script = PLAIN.format(folder=str(self.path / "plain"), example=str(EXAMPLE))
        (self.path / "plain" / "worker.py").write_text(script)
        self.workers = [
            await self._member(f"w{n}", serves='{"cmd.tool.words.count" = "agents/words.py:count"}') for n in range(2)
        ]
        for worker in self.workers:
            (worker.one.home.path / "agents" / "words.py").write_text(self._tool(worker.one.home.path.name))
        await asyncio.gather(*(worker.start() for worker in self.workers))
        self.plain_wire, self.plain_address = await self._wire()
        self.client = await nats.connect(
            f"nats://127.0.0.1:{self.server.port}", token=TOKEN, max_reconnect_attempts=-1, reconnect_time_wait=0.1
        )
        self.homes = [await self._member(name, agents=AGENTS) for name in "ab"]
        source = "from typing import Any\n" + inspect.getsource(Tally)
        for home in self.homes:
            (home.one.home.path / "agents" / "tally.py").write_text(source)
            await home.start()
            await until(lambda home=home: self._is_settled(home))  # type: ignore[misc]
        self.spawn_plain()

        async def is_shared() -> bool:
            """Whether each worker has carried out a call."""
            await self.send(1)
            return len({line.split(" ")[1] for line in self.journal.read_text().splitlines()}) == 3

        await until(is_shared)

    async def _is_settled(self, home: Member) -> bool:
        row = await home.owned()
        return bool(row["owned"] or "belongs to another home" in row["problem"])

    def _tool(self, who: str) -> str:
        return TOOL.format(done=str(self.done), journal=str(self.journal), who=who)

    async def _wire(self) -> tuple[Wire, str]:
        wire = Wire(self.server)
        self.wires.append(wire)
        return wire, await wire.open()

    async def _member(self, name: str, **worker: Any) -> Member:
        return Member(self.path / name, *await self._wire(), **worker)

    def spawn_plain(self) -> None:
        if self.plain is None or self.plain.poll() is not None:
            words = [sys.executable, self.path / "plain" / "worker.py", self.plain_address]
            self.plain = subprocess.Popen(words, stderr=subprocess.DEVNULL)

    async def close(self) -> None:
        if self.plain is not None:
            self.plain.kill()
            self.plain.wait()
        for member in [*self.homes, *self.workers]:
            member.one.close()
        await self.client.close()
        for wire in self.wires:
            await wire.close()

    # --- commands ---

    async def send(self, count: int) -> None:
        """Send new commands, each of them twice."""
        stream, first = self.client.jetstream(), self.sent
        self.sent += count
        for number in range(first, first + count):
            for copy in range(2):
                await surely(
                    stream,
                    f"{number}-{copy}",
                    json.dumps({"payload": {"text": text(number)}, "idempotency_key": f"k{number}"}),
                )

    def open_calls(self) -> dict[str, str]:
        """The calls that a worker has begun and not ended: its name by their key."""
        found: dict[str, str] = {}
        for line in self.journal.read_text().splitlines():
            what, who, key = line.split(" ")
            if what == "begin":
                found[key] = who
            else:
                found.pop(key, None)
        return found

    # --- faults ---

    async def owner_killed(self) -> None:
        self.homes[0].one.kill()
        await self.homes[0].start()

    async def owner_suspended(self) -> None:
        os.kill(self.homes[0].one.pid, signal.SIGSTOP)
        await asyncio.sleep(ACK_S * 1.5)  # its commands must be delivered again
        os.kill(self.homes[0].one.pid, signal.SIGCONT)

    async def worker_killed(self) -> None:
        self.held.touch()
        await self.send(1)  # what was sent before may be done, and a worker dies in a call
        async with asyncio.timeout(HANG_S):
            while not (who := set(self.open_calls().values())):
                await asyncio.sleep(0.002)
        name = sorted(who)[0]
        if name == "plain":
            assert self.plain is not None
            self.plain.kill()
            self.plain.wait()
        for worker in self.workers:
            if worker.one.home.path.name == name:
                worker.one.kill()
                await worker.start()
        self.held.unlink()

    async def server_restarted(self) -> None:
        await asyncio.to_thread(self.server.kill)
        await asyncio.to_thread(self.server.start)

    async def owner_cut(self) -> None:
        await self._cut(self.homes[0].wire)

    async def workers_cut(self) -> None:
        await asyncio.gather(self._cut(self.workers[0].wire), self._cut(self.plain_wire))

    async def _cut(self, wire: Wire) -> None:
        wire.cut()
        await asyncio.sleep(ACK_S * 0.3)
        wire.is_cut = False


async def surely(stream: JetStreamContext, identity: str, body: str) -> None:
    async with asyncio.timeout(HANG_S):
        while True:
            with suppress(nats.errors.Error, OSError):
                await stream.publish(
                    "cmd.shop.main.tally.count", body.encode(), headers={"Nats-Msg-Id": identity}, timeout=2
                )
                return
            await asyncio.sleep(0.05)


async def until(is_so: Callable[[], Any]) -> None:
    async with asyncio.timeout(HANG_S):
        while not await is_so():
            await asyncio.sleep(0.02)


def text(number: int) -> str:
    return " ".join(["word"] * (number % 7 + 1)) + f" {number}"


def handled(records: list[Record]) -> Counter[str]:
    """How often each command was handled, by its key."""
    inputs = [record.event.metadata for record in records if record.event.type == "count"]
    return Counter(str(each["key"]) for each in inputs if each["role"] == "input")


async def undisturbed(count: int, prompts: Sequence[StreamEvent] = ()) -> str:
    """The hash of the state after these commands and prompts in a home that nothing happens to."""

    class Here(EffectKind):
        effect_class = "idempotent"

        async def run(self, effect: Any, key: str) -> Any:
            return {"words": len(effect.args["text"].split())}

    store = MemoryStore()
    runtime = Runtime(store, seeded_identity(1), agents(Tally), kinds={"count": Here()})
    await runtime.start()
    for number in range(count):
        await runtime.command("tally", command(f"k{number}", "count", text=text(number)))
    for prompt in prompts:
        await store.append([prompt])
    engine = runtime.engines["tally"]

    async def is_done() -> bool:
        return len(engine.agent.state()["words"]) == count + len(prompts)

    await until(is_done)
    await runtime.close()
    return [
        record.event.metadata["state"] async for record in store.read("agent/tally") if "state" in record.event.metadata
    ][-1]


@asynccontextmanager
async def world(path: Path) -> AsyncIterator[World]:
    """Both homes at work, of which the first owns the agent."""
    with real_server(path / "nats", jetstream=unsynced(path / "nats")) as server:
        made = World(path, server)
        try:
            await made.build()
            yield made
        finally:
            await made.close()
