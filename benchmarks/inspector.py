"""The inspector over a log of a million events, with a session of 100,000, in a real Chromium."""

from __future__ import annotations

import asyncio
import gzip
import os
import random
import shutil
import statistics
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any, Final

from benchmarks.million import TEXT, index, records, resident, stored
from benchmarks.million import build as build_log
from benchmarks.report import Row
from sidecar.home import Home
from sidecar.inspector.server import PAGE
from streams.hashing import GENESIS, encode
from streams.hashing import chain as chained
from streams.identity import seeded_identity, system_identity
from streams.stores.plan import Placed
from streams.stores.stored import Stored
from tests.sidecar.inspector.conftest import WAIT_MS, Served, aside, chromium, inspecting, record

EVENTS = 1_000_000
LONG = 100_000
"""How many events the session has whose page is measured."""

STREAM: Final = "ses_0000000000long"
SHORT: Final = "ses_00000000root"
"""A session of at most 500 events in the same log."""

STEPS = 8
"""How many calls a turn of that session has."""

MODEL = {"provider": "mock", "model": "mock-1"}
DIFF = "--- a\n+++ a\n@@ -1,3 +1,3 @@\n same\n-was before\n+is after\n same\n"


OPENED = 5
"""How often the page is opened, each time by a new `inspect`. The best time counts, because other work on the machine
can only make it longer."""

STEPPED, ROUNDS = 9, 5
"""How many steps a round has in each tab, and how many rounds; the best round's median counts."""

JUMPS = 15
"""How many moments in each tab are jumped to; the median counts."""

TABS: Final = ("conversation", "timeline", "files", "events")
SEARCHES: Final = ("Prompt 17. It reads", "runs the tests", "nothing holds this")
"""A rare, a common and a missing text."""

_PAINTED: Final = """
window.painted = new Promise((done) => new MutationObserver((_, observer) => {
  if (!document.querySelector(".talk .turn-html")) return;
  observer.disconnect();
  requestAnimationFrame(() => setTimeout(() => done(performance.now())));
}).observe(document, { childList: true, subtree: true }));
"""
"""Notes how many ms after the request the first turn is on the screen."""

_STEP: Final = """
async (count) => {
  const real = window.fetch;
  let answered;
  window.fetch = async (...given) => {
    const response = await real(...given);
    const json = response.json.bind(response);
    response.json = async () => {
      const found = await json();
      setTimeout(() => answered());
      return found;
    };
    return response;
  };
  const times = [];
  for (let number = 0; number < count; number++) {
    const began = performance.now();
    // The page asks once, for the head and for what the tab shows.
    const drawn = new Promise((done) => { answered = () => requestAnimationFrame(() => setTimeout(done)); });
    document.body.dispatchEvent(new KeyboardEvent("keydown", { key: number % 3 === 2 ? "]" : "[", bubbles: true }));
    await drawn;
    times.push(performance.now() - began);
  }
  window.fetch = real;
  return times;
}
"""
"""The ms of some steps, each until it is on the screen."""

_JUMP: Final = """
async ([path, numbers]) => {
  const { get } = await import("/page/lib.js");
  const times = [];
  for (const at of numbers) {
    const began = performance.now();
    await get(path, { at, width: 900, marks: 1000000 });
    times.push(performance.now() - began);
  }
  return times;
}
"""
"""The ms of the answers at some moments, each with the head of its moment."""

_ASK: Final = """
async (asks) => {
  const { get } = await import("/page/lib.js");
  const times = [];
  for (const [path, values] of asks) {
    const began = performance.now();
    await get(path, values);
    times.push(performance.now() - began);
  }
  return times;
}
"""
"""The ms of some answers, one after the other."""

_TABS: Final = """
async (count) => {
  const { get } = await import("/page/lib.js");
  const began = performance.now();
  await Promise.all(Array.from({ length: count }, () => get("sessions")));
  return performance.now() - began;
}
"""
"""The ms until some tabs that ask at once all have the list."""

TABS_OPEN: Final = 10

_OTHERS: Final = """
async ([short, long]) => {
  const { get } = await import("/page/lib.js");
  return (await get("sessions")).sessions.map((row) => row.stream_id).filter((name) => name !== short && name !== long);
}
"""

WAYS: Final = ("day", "project", "model", "agent", "session")


def _turns(count: int) -> Iterator[dict[str, object]]:
    """The events of one session: prompts, commands, edits, asks, answers."""

    def one(type_: str, actor: str = "build", **payload: object) -> dict[str, object]:
        return {
            "type": type_,
            "stream_id": STREAM,
            "actor": actor,
            "source": {"agent": actor, "adapter": "opencode"},
            "payload": {"session": STREAM, **payload},
            "metadata": {"boot": "boot"},
        }

    yield one("lifecycle.session.created", title="A long session", directory="/home/ada/shop")
    for turn in range(count):
        message, answer = f"msg_{turn:08d}user", f"msg_{turn:08d}answ"
        said = [{"type": "text", "text": f"Prompt {turn}. {TEXT[:240]}"}]
        yield one("human.input", "user", message=message, parts=said)
        started = {"message": message, "assistant_message": answer, "agent": "build", "trigger": "prompt"}
        yield one("turn.started", model=MODEL, **started)
        about = {"turn": message, "message": answer}
        for number in range(STEPS):
            call: dict[str, object] = {
                "call": f"call_{turn:06d}_{number:02d}",
                "part": f"prt_{turn:06d}_{number:02d}",
                **about,
            }
            is_edit = number == STEPS - 1
            if number == 0 and turn % 4 == 0:
                ask = {"kind": "permission", "permission": "bash", "request": f"per_{turn}", "patterns": ["make"]}
                yield one("workflow.checkpoint", state="asked", **ask, **call)
                yield one("workflow.checkpoint", "user", state="replied", reply="once", **ask, **call)
            call["tool"] = "edit" if is_edit else "bash"
            call["input"] = {"filePath": f"src/file{turn % 50}.py"} if is_edit else {"command": f"make test-{number}"}
            yield one("execution.step.started", **call)
            yield one(
                "execution.step",
                kind="tool",
                status="completed",
                duration_ms=20,
                title=f"step {number}",
                output=TEXT,
                metadata={"diff": DIFF} if is_edit else {"exit": 0},
                **call,
            )
            used = {"cost": 0.001, "tokens": {"input": 10, "output": 5, "total": 15}, "model": MODEL}
            yield one("execution.step", kind="inference", **used, **about)
        yield one("execution.output", kind="text", text=f"Answer {turn}. {TEXT}", **about)
        yield one("turn.ended", message=message, outcome="completed", title="A long session")


def _long(first: int, count: int) -> Iterator[Stored]:
    identity, previous = seeded_identity(5), GENESIS
    for offset, fields in zip(range(count), _turns(count), strict=False):
        encoded = encode(identity.stamp(fields))
        previous = chained(previous, encoded.digest_form)
        yield stored(Placed(encoded, offset, first + offset, previous))


async def build(home: Home, count: int, long: int) -> None:
    """A log of ``count`` events, the last ``long`` of them of one session, as a sidecar leaves it: with the story's
    tables and a search index."""
    home.create()
    await build_log(home.store_path, chain(records(count - long), _long(count - long, long)))
    await asyncio.to_thread(index, home.store_path)


async def measure(directory: Path, seconds: float) -> list[Row]:
    """Open the long session, step through it and search, as a person does, and read the memory of ``inspect``."""
    events = int(os.environ.get("BENCH_EVENTS", EVENTS))
    long = events * LONG // EVENTS
    home = Home(directory / "inspector")
    if not home.path.exists():
        await build(home, events, long)
    rows = await asyncio.to_thread(_measure, home, f"a session of {long:,}", long)
    shutil.rmtree(home.path)
    return rows


def _measure(home: Home, name: str, long: int) -> list[Row]:
    opened: dict[str, list[float]] = {STREAM: [], SHORT: []}
    steps: dict[str, float] = {}
    jumps: dict[str, float] = {}
    with chromium() as browser:
        for number in range(OPENED):
            for stream, times in opened.items():
                with inspecting(home.path, stream) as served, closing(browser.new_page()) as page:
                    page.set_default_timeout(20 * WAIT_MS)
                    page.add_init_script(_PAINTED)
                    page.goto(served.link, wait_until="commit")
                    page.wait_for_selector(".talk .turn-html")
                    times.append(page.evaluate("window.painted") / 1000)
                    if number == OPENED - 1 and stream == STREAM:
                        jumps = {tab: _jumped(page, tab, long) for tab in TABS}
                        steps = {tab: _stepped(page, served, f"{STREAM}/{tab}") for tab in TABS}
                        short = _stepped(page, served, f"{SHORT}/conversation")
                        searches = [_answered(page, [["search", {"q": text}]] * ROUNDS) for text in SEARCHES]
                        page.evaluate(_ASK, [["costs", {}]])  # what was spent is read once, and kept
                        costs = _answered(page, [["costs", {"by": way, "days": 30}] for way in WAYS])
                        listed, tabs = (_listed(page, home, count) for count in (1, TABS_OPEN))
                        others = page.evaluate(_OTHERS, [SHORT, STREAM])[:ROUNDS] or [STREAM]
                        compared = _answered(page, [["compare", {"a": SHORT, "b": other}] for other in others])
                        memory = _peak(served)
    size = sum(len(gzip.compress(file.read_bytes(), mtime=0)) for file in PAGE.iterdir()) / 1000
    first, beside = min(opened[STREAM]), min(opened[SHORT])
    step = steps["conversation"]
    return [
        Row(f"first paint of {name}", first, None, "s", 0.5, 0.25),
        Row(f"first paint of {name}, beside a short one", 1 / first, 1 / beside, "a short session", 0.5, 0.8),
        *(Row(f"jump to any event, {tab}", taken, None, "s", 0.1, 0.05) for tab, taken in jumps.items()),
        *(Row(f"step of the slider, {tab}", taken, None, "s", 0.05, 0.025) for tab, taken in steps.items()),
        Row("step of the slider, conversation, beside a short one", 1 / step, 1 / short, "a short session", 0.5, 0.8),
        Row("search of the page", max(searches), None, "s", 0.2, 0.05),
        Row("list of the page, after an event", listed, None, "s", 0.2, 0.1),
        Row(f"list of the page, after an event, for {TABS_OPEN} tabs", tabs, None, "s", 0.3, 0.15),
        Row("costs of the page, each way for the first time", costs, None, "s", 0.2, 0.1),
        Row("comparison of the page, each for the first time", compared, None, "s", 0.2, 0.1),
        Row("the page itself, gzip", size, None, "kB", 60, 40),
        Row("memory of `inspect`", memory, None, "MiB", 150, 120),
    ]


def _stepped(page: Any, served: Served, tab: str) -> float:
    """How long a step takes in a tab, in seconds."""
    page.goto(f"{served.base}/s/{tab}")
    page.wait_for_selector(".session .body > *")
    return min(statistics.median(page.evaluate(_STEP, STEPPED)) for _ in range(ROUNDS)) / 1000


def _answered(page: Any, asks: list[Any]) -> float:
    """How long one of some answers takes, in seconds: the median."""
    return statistics.median(page.evaluate(_ASK, asks)) / 1000


def _listed(page: Any, home: Home, tabs: int) -> float:
    """How long some tabs wait for the list together, in seconds, each time after one more event."""
    times = []
    for _ in range(ROUNDS):
        aside(record, home.path, [system_identity().stamp(next(_turns(1)))])
        times.append(page.evaluate(_TABS, tabs) / 1000)
    return statistics.median(times)


def _jumped(page: Any, tab: str, long: int) -> float:
    """How long an answer at a moment that nobody looked at before takes, in seconds."""
    numbers = random.Random(tab).sample(range(long), JUMPS)
    return statistics.median(page.evaluate(_JUMP, [f"s/{STREAM}/{tab}", numbers])) / 1000


def _peak(served: Served) -> float:
    """The most MiB that the server has had."""
    if sys.platform == "linux":
        status = Path(f"/proc/{served.process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024
    return resident(served.process.pid)
