"""Two homes with one agent and three workers on one server, all of them tormented while commands flow.

Owners are killed and suspended, workers killed in a call, the server restarted, connections cut;
``TORTURE_HOME_FAULTS`` sets how often. Each command comes twice; it must be handled once, its effect must have one key,
and the state must be that of a home that nothing happened to.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js import JetStreamContext

from bridge.opencode.link.protocol import RequestError
from sidecar.agents.runtime import Runtime
from streams.identity import seeded_identity
from streams.log.reader import LogReader
from streams.log.verify import Verification
from streams.store import Record
from tests.memory import MemoryStore
from tests.mirrors import unsynced
from tests.nats_servers import TOKEN, RealServer, real_server
from tests.sidecar.agents.support import agents, command
from tests.streams.sizes import size
from tests.torture.figures import note, seeded
from tests.torture.sidecars import HANG_S, RunningSidecar, ask, status

FAULTS = size("HOME_FAULTS", 6)
COMMANDS = 6
"""Commands around one fault."""

STEPS = 30
"""Records that an owner writes for them, at least; the fault comes after any one of these."""

LEASE_S = 1.0
AGENTS = '["agents/tally.py:Tally"]'
EXAMPLE = Path(__file__).parents[2] / "examples" / "tool_worker.py"


class Tally:
    """Asks for the words of each text; its state does not depend on their order."""

    name = "tally"

    def __init__(self) -> None:
        self.words: dict[str, Any] = {}

    def receive(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        payload = event["payload"]
        if event["type"] == "count":
            return [{"effect": "count", "payload": {"text": payload["text"]}}]
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

def note(what, key):
    with JOURNAL.open("ab", buffering=0) as file:
        file.write(f"{{what}} {{WHO}} {{key}}\\n".encode())

async def count(args, key):
    """Do it once for each key, and give the same result each time."""
    note("begin", key)
    await asyncio.sleep(0.05)
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

    async def open(self) -> str:
        self._listening = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        return f"nats://{TOKEN}@127.0.0.1:{self._listening.sockets[0].getsockname()[1]}"

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
        text = f'[nats]\nmode = "external"\nservers = ["{self._address}"]\n'
        text += "[nats.pull]\nack_wait_seconds = 1\nfetch_timeout_seconds = 1\n[worker]\n" + "\n".join(lines)
        text += '\n[worker.tools.count]\ntarget_subject = "cmd.tool.words.count"\n' if "agents" in worker else "\n"
        self.one.home.config_path.write_text(text)

    async def start(self) -> None:
        await asyncio.to_thread(self.one.start)

    async def owned(self) -> dict[str, Any]:
        (row,) = (await status(self.one))["nats"]["owned"]
        return dict(row)

    async def records(self) -> list[Record]:
        reader = LogReader(self.one.home.store_path)
        found = [record async for record in reader.read_all(after=-1) if record.event.stream_id.startswith("agent/t")]
        await reader.close()
        return found


class World:
    """The server, the homes, the workers, and the commands that were sent."""

    def __init__(self, path: Path, server: RealServer) -> None:
        self.path, self.server, self.random = path, server, seeded("many homes")
        self.done, self.journal = path / "done", path / "journal"
        self.done.mkdir()
        self.journal.touch()
        self.sent = 0
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
        self.homes = [await self._member(name, agents=AGENTS, lease_seconds=LEASE_S) for name in ("a", "b")]
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
        return bool(row["held"] or "belongs to another home" in row["problem"])

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
        stream = self.client.jetstream()
        for number in range(self.sent, self.sent + count):
            for copy in range(2):
                await _surely(
                    stream,
                    f"{number}-{copy}",
                    json.dumps({"payload": {"text": text(number)}, "idempotency_key": f"k{number}"}),
                )
        self.sent += count

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
        await asyncio.sleep(LEASE_S * 1.5)  # the lease must end
        os.kill(self.homes[0].one.pid, signal.SIGCONT)

    async def worker_killed(self) -> None:
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

    async def server_restarted(self) -> None:
        await asyncio.to_thread(self.server.kill)
        await asyncio.to_thread(self.server.start)

    async def owner_cut(self) -> None:
        await self._cut(self.homes[0].wire)

    async def workers_cut(self) -> None:
        await asyncio.gather(self._cut(self.workers[0].wire), self._cut(self.plain_wire))

    async def _cut(self, wire: Wire) -> None:
        wire.cut()
        await asyncio.sleep(LEASE_S * 0.3)
        wire.is_cut = False


async def _surely(stream: JetStreamContext, identity: str, body: str) -> None:
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


async def undisturbed(count: int) -> str:
    """The hash of the state after these commands in a home that nothing happens to."""

    class Here:
        effect_class, reconcile = "idempotent", None

        async def run(self, effect: Any, key: str) -> Any:
            return {"words": len(effect.args["text"].split())}

    store = MemoryStore()
    runtime = Runtime(store, seeded_identity(1), agents(Tally), kinds={"count": Here()})  # type: ignore[dict-item]
    await runtime.start()
    for number in range(count):
        await runtime.command("tally", command(f"k{number}", "count", text=text(number)))
    engine = runtime.engines["tally"]

    async def is_done() -> bool:
        return len(engine.agent.state()["words"]) == count

    await until(is_done)
    await runtime.close()
    return [
        record.event.metadata["state"] async for record in store.read("agent/tally") if "state" in record.event.metadata
    ][-1]


@asynccontextmanager
async def world(path: Path) -> AsyncIterator[World]:
    with real_server(path / "nats", jetstream=unsynced(path / "nats")) as server:
        made = World(path, server)
        try:
            await made.build()
            yield made
        finally:
            await made.close()


async def test_many_homes_and_workers_handle_each_command_once_whatever_happens(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        epoch = (await made.homes[0].owned())["epoch"]
        await torment(made)
        await judge(made, epoch)
        await take_over(made)


async def torment(made: World) -> None:
    """One fault after the other, each at some step of what its commands lead to, until all of them are done."""
    first = made.homes[0]
    kinds = (
        made.owner_killed,
        made.owner_suspended,
        made.worker_killed,
        made.server_restarted,
        made.owner_cut,
        made.workers_cut,
    )
    for number in range(FAULTS):
        wanted = len(await first.records()) + made.random.randrange(STEPS)
        sending = asyncio.create_task(made.send(COMMANDS))

        async def is_there(wanted: int = wanted) -> bool:
            return len(await first.records()) >= wanted

        await until(is_there)
        await kinds[number % len(kinds)]()
        made.spawn_plain()
        await sending

    async def is_done() -> bool:
        made.spawn_plain()
        return sum(record.event.type == "tally.counted" for record in await first.records()) >= made.sent

    await until(is_done)


async def judge(made: World, epoch: int) -> None:
    """Each command handled once, by the owner; one key and one result for each effect; the state of a quiet home."""
    first, second = made.homes
    records = await first.records()
    inputs = handled(records)
    lost, doubled = made.sent - len(inputs), inputs.total() - len(inputs)
    begun = [line.rpartition(" ")[2] for line in made.journal.read_text().splitlines() if line.startswith("begin")]
    note("many-homes", kills=FAULTS, inputs=made.sent, lost=lost, doubled=doubled, effects=len(begun))
    assert (lost, doubled) == (0, 0) and not handled(await second.records())
    assert len(set(begun)) == len(list(made.done.iterdir())) == made.sent
    ended = Counter(record.event.payload["request"] for record in records if record.event.type == "effect.completed")
    assert len(ended) == ended.total() == made.sent
    states = [record.event.metadata["state"] for record in records if "state" in record.event.metadata]
    assert states[-1] == await undisturbed(made.sent)
    owned = [record.event.payload for record in records if record.event.type == "agent.owned"]
    assert owned == [{"epoch": epoch, "previous": None, "inherited": False}]
    for home in made.homes:
        assert [str(finding) async for finding in Verification(home.one.home.store_path).run()] == []


async def take_over(made: World) -> None:
    """The owner is gone for good; the second home goes on, once it may. Then the first one comes back."""
    first, second = made.homes
    held, before = await first.owned(), handled(await first.records())
    sending = asyncio.create_task(made.send(COMMANDS))

    async def has_begun() -> bool:
        return handled(await first.records()) != before

    await until(has_begun)
    first.one.kill()
    await sending

    async def says_how() -> bool:
        return "take_over" in (await second.owned())["problem"]

    await until(says_how)
    waits = await second.owned()
    assert (waits["held"], waits["owner"], waits["epoch"]) == (False, held["owner"], held["epoch"])
    with pytest.raises(RequestError) as refused:
        await ask(second.one, "send", {"agent": "tally", "type": "count", "payload": {"text": "no"}})
    assert refused.value.code == "not-owner"
    assert second.one.stop() == 0
    second.configure(agents=AGENTS, lease_seconds=LEASE_S, take_over="true")
    await second.start()

    async def is_taken() -> bool:
        return bool((await second.owned())["held"])

    await until(is_taken)
    taken = await second.owned()
    assert taken["epoch"] > held["epoch"] and taken["owner"] != held["owner"] and not taken["problem"]
    await made.send(COMMANDS)

    async def is_done() -> bool:
        records = await second.records()
        counted = sum(record.event.type == "tally.counted" for record in records)
        done = handled(await first.records()) + handled(records)
        return counted == handled(records).total() and len(done) == made.sent

    await until(is_done)
    records = await second.records()
    assert max(handled(records).values()) == 1
    (owned,) = [record.event.payload for record in records if record.event.type == "agent.owned"]
    assert (owned["epoch"], owned["previous"]) == (taken["epoch"], held["owner"])
    await first.start()

    async def stands_still() -> bool:
        return (await first.owned())["owner"] == taken["owner"]

    await until(stands_still)
    back = await first.owned()
    assert not back["held"] and taken["owner"] in back["problem"]
