"""``make torture``: the cruel tests at full size, in chunks; an interrupted run continues where it was.

Each chunk is one pytest run with its own seed and with sizes from the environment (``tests/streams/sizes.py``). What
it counted goes into ``.cache/torture/state.json`` when it passed; a chunk that failed runs again next time, with the
same seed; its files stay in ``.cache/torture``. A change of the product, its tests or the plan makes what was reached
void.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
STATE = ROOT / ".cache" / "torture" / "state.json"
TORTURE = "tests/torture"
STREAMS = "tests/streams"
NOTHING_COLLECTED = 5


@dataclass(frozen=True)
class Part:
    """One row of the plan. ``sizes`` are for one chunk; ``{n}`` in ``tests`` is the chunk's number."""

    name: str
    what: str
    tests: tuple[str, ...]
    chunks: int = 1
    sizes: dict[str, int] = field(default_factory=dict)
    limit_s: float = 3600.0
    """A chunk that takes longer counts as hanging."""


WRITERS = f"{TORTURE}/test_writers.py"
KILL_TEST = f"{WRITERS}::test_nothing_acknowledged_is_lost_and_nothing_is_invented"
CALLS_TEST = f"{STREAMS}/test_crash_images.py::test_killed_at_any_change_nothing_acknowledged_is_lost"

PLAN = (
    Part(
        "fuzz", "hostile messages", (f"{TORTURE}/test_messages.py", "-k", "mutated_messages"), 10, {"MESSAGES": 64_000}
    ),
    Part(
        "hooks",
        "hostile hooks, to the log",
        (f"{TORTURE}/test_messages.py", "-k", "mutated_hooks"),
        10,
        {"HOOKS": 25_000},
    ),
    Part("values", "odd values of fields", ("tests/bridge/test_values.py",), 1, {"VALUES": 10_000}),
    Part("large", "messages of 16 MiB", (f"{TORTURE}/test_messages.py", "-k", "large"), 1, {"BIG_BYTES": 2**24 - 1}),
    Part("sockets", "hostile bytes over sockets", (f"{TORTURE}/test_sockets.py",), 5, {"SOCKETS": 20_000}),
    Part(
        "crowds",
        "idle, slow, deaf, restless peers",
        (f"{TORTURE}/test_crowds.py",),
        1,
        {"IDLE": 200, "LORIS": 200, "DEAF": 20, "DEAF_BYTES": 2**23, "RECONNECTS": 10_000, "NEIGHBOUR_HOOKS": 300},
    ),
    Part("kills", "kill -9 of the sidecar", (f"{TORTURE}/test_kills.py",), 20, {"SIDECAR_KILLS": 50}),
    Part(
        "team-kills",
        "kill -9 of Postgres and of the copies to it, wires that are cut, clocks hours apart",
        ("tests/sidecar/team/test_kills.py",),
        4,
        {"TEAM_KILLS": 20, "TEAM_HOMES": 4, "TEAM_EVENTS": 1_000},
    ),
    Part(
        "team-agent-kills",
        "kill -9, and sleep, of homes with the team's agents, and kill -9 of Postgres",
        ("tests/sidecar/team/test_agent_kills.py",),
        1,
        {"TEAM_AGENT_KILLS": 30},
    ),
    Part(
        "background-kills",
        "kill -9 of three processes while many agents work in background, on both OpenCodes",
        (f"{TORTURE}/test_background_crowds.py", "-m", "torture or not torture"),
        15,  # 1,200 results that a parent gets
        {"CROWD": 40, "CROWD_KILLS": 9},
    ),
    Part(
        "background-steps",
        "kill -9 in every step of one agent's life, on OpenCode",
        (f"{TORTURE}/test_background_kills.py", "-m", "torture or not torture"),
        15,  # 30 kills of each process: one in every step
        {"BACKGROUND_KILLS": 2, "ASKING_KILLS": 2},
    ),
    Part(
        "service-kills",
        "kill -9 of the sidecar while OpenCode 2 works",
        ("tests/real/test_opencode2.py", "-k", "killed_again"),
        1,
        {"SERVICE_KILLS": 20},
    ),
    Part("fencing", "sidecars that wake up", (f"{TORTURE}/test_fencing.py",), 1, {"FENCINGS": 50}),
    Part("log-kills", "kill -9 of the log's writer", (f"{KILL_TEST}[log-{{n}}]",), 50, {"KILLS": 1000}),
    Part("moving-kills", "the same while it moves records", (f"{KILL_TEST}[moving-{{n}}]",), 50, {"KILLS": 1000}),
    Part("journal-kills", "the same when it moves none", (f"{KILL_TEST}[resting-{{n}}]",), 50, {"KILLS": 1000}),
    Part(
        "call-kills",
        "kill -9 at every change of the disk",
        (f"{CALLS_TEST}[{{n}}]",),
        40,
        {"KILL_CHUNKS": 40},
    ),
    Part(
        "commands",
        "kill -9 of agents, effects and commands at every step; 1,300 kills a chunk",
        ("tests/sidecar/mirror/test_command_crashes.py",),
        2,
        {"COMMAND_KILLS": 50},
    ),
    Part(
        "machines",
        "kill -9 of two machines and of the server at every step between a request and its answer",
        ("tests/sidecar/mirror/test_machine_kills.py",),
        2,
        {"MACHINE_KILLS": 50},
    ),
    Part(
        "many-homes",
        "homes with one agent, their workers and their server tormented",
        (f"{TORTURE}/test_many_homes.py", f"{TORTURE}/test_home_steps.py"),
        5,
        {"HOME_FAULTS": 60},
    ),
    Part(
        "runtime-oracle",
        "duplicates, restarts, poison, two engines",
        ("tests/sidecar/agents/test_oracle.py",),
        5,
        {"RUNTIME_EXAMPLES": 1_000},
    ),
    Part("crash-images", "power losses", (f"{STREAMS}/test_crash_images.py", "-k", "power_loss"), 20, {"IMAGES": 250}),
    Part("derived", "lives of derived tables", (f"{STREAMS}/test_derived.py", "-k", "any_life"), 1, {"DERIVED": 80}),
    Part("slow-disk", "+5, +50, +500 ms a sync", (f"{STREAMS}/test_slow_disk.py",), 1, {"SLOW_SYNCS": 100}),
    Part(
        "two-writers",
        "writers that want one store",
        (f"{TORTURE}/test_writers.py", "-k", "one_writes"),
        1,
        {"WRITER_ROUNDS": 100},
    ),
    Part(
        "soak",
        "a mixed load with kills and full disks",
        (f"{TORTURE}/test_writers.py", "-k", "mixed_load"),
        13,
        {"SOAK_S": 300},
    ),
    Part(
        "log-differential",
        "the log beside one in memory",
        (f"{STREAMS}/test_differential.py",),
        10,
        {"SEQUENCES": 1_000},
    ),
    Part(
        "log-damage",
        "every cut and every bit",
        (f"{STREAMS}/test_recovery.py", f"{STREAMS}/test_vectors.py"),
        1,
        {"OPENINGS": 1_000_000, "READ_EVERY": 1, "LONG_TEXT": 900, "EXAMPLES": 10_000},
    ),
    Part(
        "any-damage",
        "any file of a store damaged",
        (f"{STREAMS}/test_any_damage.py", "-k", "every_way"),
        20,
        {"DAMAGES": 1_000},
    ),
    Part(
        "mirror",
        "servers, mirrors and logs tormented; 5,000 records a chunk",
        (f"{TORTURE}/test_mirror.py",),
        20,
        {"MIRROR_CYCLES": 50, "MIRROR_CYCLE_RECORDS": 100},
    ),
    Part(
        "mirror-long",
        "110,000 records, each fault once",
        (f"{TORTURE}/test_mirror.py",),
        1,
        {"MIRROR_CYCLES": 11, "MIRROR_CYCLE_RECORDS": 10_000},
    ),
    Part(
        "copies",
        "each kind of repository with each git",
        ("tests/sidecar/background/copies/test_kinds.py",),
        1,
        {"GITS": 2},
    ),
    Part(
        "moments",
        "every moment of the recordings and of the homes of the real OpenCodes",
        ("tests/sidecar/read/story/test_moments.py", "tests/real"),
        1,
        {"MOMENTS": 0},
    ),
    Part("marked", "tests that run here only", ("tests", "-m", "torture")),
)


class State:
    """The progress so far, written to disk after every chunk."""

    def __init__(self, fingerprint: str, seed: int, *, fresh: bool) -> None:
        found = json.loads(STATE.read_text()) if STATE.exists() else {}
        keep = not fresh and (found.get("fingerprint"), found.get("seed")) == (fingerprint, seed)
        if found.get("done") and not keep:
            print("starting again: " + ("as asked" if fresh else "the code, the plan or the seed is another one"))
        self._fields: dict[str, Any] = {
            "fingerprint": fingerprint,
            "seed": seed,
            "done": found.get("done", {}) if keep else {},
        }
        self._lock = Lock()
        self._write()

    @property
    def done(self) -> dict[str, dict[str, Any]]:
        """Finished chunks: seconds and figures by name."""
        done: dict[str, dict[str, Any]] = self._fields["done"]
        return done

    def add(self, chunk: str, seconds: float, figures: list[dict[str, Any]]) -> None:
        """Remember a chunk that passed."""
        with self._lock:
            self.done[chunk] = {"seconds": round(seconds, 1), "figures": figures}
            self._write()

    def _write(self) -> None:
        STATE.parent.mkdir(parents=True, exist_ok=True)
        draft = STATE.with_suffix(".new")
        draft.write_text(json.dumps(self._fields, indent=1) + "\n")
        draft.replace(STATE)


def fingerprint() -> str:
    """Return a digest of everything that a figure depends on."""
    digest = hashlib.sha256(repr(PLAN).encode())
    for folder in ("streams", "bridge", "sidecar", "tests/torture", "tests/streams"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def run(part: Part, number: int, seed: int, state: State) -> bool:
    """Run one chunk; return false if it failed."""
    name = f"{part.name}:{number}"
    figures, log = STATE.parent / f"{part.name}-{number}.figures", STATE.parent / f"{part.name}-{number}.log"
    figures.unlink(missing_ok=True)
    sizes = {f"TORTURE_{key}": str(value) for key, value in part.sizes.items()}
    environment = {**os.environ, **sizes, "TORTURE_SEED": str(seed + number), "TORTURE_FIGURES": str(figures)}
    tests = [argument.replace("{n}", str(number)) for argument in part.tests]
    began = time.monotonic()
    # Chunks that run beside each other must not tidy up one temporary directory.
    left = STATE.parent / f"{part.name}-{number}.left"
    shutil.rmtree(left, ignore_errors=True)
    with log.open("w") as output, TemporaryDirectory(prefix="torture-") as place:
        try:
            code: int | None = subprocess.run(
                [sys.executable, "-m", "pytest", "--basetemp", f"{place}/t", *tests],
                cwd=ROOT,
                env=environment,
                stdout=output,
                stderr=output,
                timeout=part.limit_s,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            code = None
        if code:
            with suppress(OSError):  # it may have no files
                shutil.move(Path(place, "t"), left)
    seconds = time.monotonic() - began
    if code == 0 or (code == NOTHING_COLLECTED and part.name == "marked"):
        lines = figures.read_text().splitlines() if figures.exists() else []
        state.add(name, seconds, [json.loads(line) for line in lines])
        print(f"{name:22} seed {seed + number:<8} {seconds:7.1f} s", flush=True)
        return True
    reason = "HANGS" if code is None else "FAILED"
    print(f"{name:22} seed {seed + number:<8} {seconds:7.1f} s  {reason}, see {log.relative_to(ROOT)}", flush=True)
    return False


SUMMED = (
    "inputs", "kills", "events", "resent", "hangs", "lost", "doubled", "connections_closed",
    "torn", "early", "lives", "appends", "reads", "holds", "full", "reopened", "seconds",
    "effects", "in_doubt", "dead", "seen",
)  # fmt: skip


def rows(state: State) -> Iterator[str]:
    """Yield the figures of all finished chunks: sums of counts, the worst of measurements."""
    by_part: dict[str, list[dict[str, Any]]] = {}
    for chunk in state.done.values():
        for figure in chunk["figures"]:
            by_part.setdefault(figure["part"], []).append(figure)
    for part, figures in by_part.items():
        told: dict[str, float] = {}
        for figure in figures:
            for key, value in figure.items():
                if key in SUMMED:
                    told[key] = told.get(key, 0) + value
                elif key not in ("part", "rss_start", "rss_end", "rss_crowded"):
                    told[key] = max(told.get(key, 0), value)
        grown = [figure for figure in figures if "rss_start" in figure]
        if grown:
            worst = max(grown, key=lambda figure: figure["rss_end"] - figure["rss_start"])
            told["rss_start_mib"], told["rss_end_mib"] = worst["rss_start"], worst["rss_end"]
        yield f"{part:24}" + "  ".join(f"{key} {value:,.10g}" for key, value in told.items())


def main() -> int:
    """Return 0 if every wanted chunk is done and passed."""
    parser = argparse.ArgumentParser(prog="make torture", description=__doc__)
    parser.add_argument("only", nargs="*", choices=[[], *(part.name for part in PLAN)], help="parts to run; all")
    parser.add_argument("--seed", type=int, default=1, help="of everything random; chunk n takes seed + n")
    parser.add_argument("--jobs", type=int, default=1, help="chunks at a time")
    parser.add_argument("--fresh", action="store_true", help="forget what was reached")
    options = parser.parse_args()
    state = State(fingerprint(), options.seed, fresh=options.fresh)
    wanted = [part for part in PLAN if not options.only or part.name in options.only]
    chunks: list[tuple[Part, int]] = []
    for part in wanted:
        missing = [n for n in range(part.chunks) if f"{part.name}:{n}" not in state.done]
        print(f"{part.name}: {part.what}; {part.chunks - len(missing)} of {part.chunks} chunks done", flush=True)
        chunks += [(part, number) for number in missing]
    # Interleave the parts, so that even an interrupted run has tried some of each part.
    chunks.sort(key=lambda chunk: chunk[1])
    pool = ThreadPoolExecutor(options.jobs)
    runs = [pool.submit(run, *chunk, options.seed, state) for chunk in chunks]
    try:
        failed = sum(not one.result() for one in runs)
    except KeyboardInterrupt:
        pool.shutdown(cancel_futures=True)
        print("interrupted; run it again to continue from here")
        return 130
    total = sum(part.chunks for part in wanted)
    done = sum(f"{part.name}:{n}" in state.done for part in wanted for n in range(part.chunks))
    print(f"\n{done} of {total} chunks passed, seed {options.seed}; the worst chunk's memory, times and percentiles:")
    print("\n".join(rows(state)))
    if failed:
        print(f"{failed} chunks violated what is promised")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
