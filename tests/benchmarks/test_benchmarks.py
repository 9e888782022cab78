"""`make bench` at its smallest: every row of the log and of a long one is present, whatever its figure."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks import (
    inspector,
    limits,
    million,
    mirror,
    newest,
    opencode,
    peers,
    pipeline,
    runtime,
    store,
    team,
    team_reading,
)
from benchmarks.limits import beside, paired
from benchmarks.report import Row, table
from tests.real.api import OpenCodeApi
from tools import generate_performance

DOCS = Path(__file__).parents[2] / "docs"


async def test_every_row_of_the_log_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"CHUNK": 64, "SLOW_CHUNK": 4, "BURST": 128, "ENDLESS": 256, "ENDLESS_ROUNDS": 1, "REPLAYED": 20}
    for name, value in small.items():
        monkeypatch.setattr(store, name, value)
    monkeypatch.setattr(limits, "ROUNDS", 1)
    rows = await store.measure(tmp_path, 0.02)
    floors = [0.5, 5, 3.5, 2, 50, 0.75, 0.35]
    assert [row.floor for row in rows if row.floor is not None] == floors
    assert all(row.value > 0 and (row.limit or row.unit == "s") for row in rows)
    assert all(row.label in table(rows) for row in rows)


async def test_every_row_of_the_mirror_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "CHUNK", 200)
    monkeypatch.setattr(limits, "ROUNDS", 1)
    rows = await mirror.measure(tmp_path, 0.02)
    assert [row.floor for row in rows] == [0.45, None]
    assert all(row.value > 0 and row.limit for row in rows)


async def test_every_row_of_the_team_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(team, "COUNT", 300)
    monkeypatch.setattr(limits, "ROUNDS", 1)
    rows = await team.measure(tmp_path, 0.02)
    assert [row.floor for row in rows] == [0.25, None, None, 0.25, 4.0]
    assert all(row.value > 0 and row.limit for row in rows)


async def test_every_question_to_a_copy_is_answered_as_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_EVENTS", "600")
    monkeypatch.setattr(team_reading, "LEAST", 1)
    rows = {row.label: row for row in await team_reading.measure(tmp_path, 0)}
    assert all(row.value > 0 for row in rows.values() if row.label != "team, bytes an event, index of texts")
    assert sum(row.limit is not None for row in rows.values()) == len(team_reading.QUESTIONS) + 1


async def test_every_row_of_the_runtime_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "CHUNK", 256)
    monkeypatch.setattr(runtime, "CHUNK", 256)
    monkeypatch.setattr(limits, "ROUNDS", 1)
    rows = await runtime.measure(tmp_path, 0.02)
    assert [row.floor for row in rows] == [None, 0.3, None]
    assert all(row.value > 0 and row.limit for row in rows)


async def test_every_row_of_a_long_log_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_EVENTS", "600")
    monkeypatch.setattr(million, "STARTS", 1)
    monkeypatch.setattr(million, "COMMANDS", million.COMMANDS[:1])
    monkeypatch.setattr(million, "RECORDING_SECONDS", 0.1)
    rows = await million.measure(tmp_path, 0.1)
    assert {row.unit for row in rows} == {"s", "MiB"}
    assert [row.floor for row in rows if "serve ready" in row.label].count(2) == 1
    assert [row.floor for row in rows if row.label.startswith("memory,")] == [200]


async def test_every_row_of_the_newest_records_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_EVENTS", "1500")
    monkeypatch.setattr(newest, "RUNS", 1)
    monkeypatch.setattr(limits, "ROUNDS", 1)
    rows = await newest.measure(tmp_path, 0.02)
    assert [row.floor for row in rows] == [0.5, 0.4]
    assert all(row.value > 0 and row.limit for row in rows)


async def test_every_row_of_the_inspector_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_EVENTS", "600")
    monkeypatch.setattr(inspector, "OPENED", 1)
    monkeypatch.setattr(inspector, "ROUNDS", 1)
    rows = await inspector.measure(tmp_path, 0.02)
    tabs = len(inspector.TABS)
    pages = [0.2, 0.2, 0.3, 0.2, 0.2, 60, 150]
    assert [row.floor for row in rows] == [0.5, 0.5, *[0.1] * tabs, *[0.05] * tabs, 0.5, *pages]
    assert all(row.value > 0 for row in rows) and rows[-2].verdict != "BELOW FLOOR"


async def test_without_peers_their_rows_are_missed_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "dbos", None)
    assert await peers.measure(tmp_path, 0.1) == []
    assert "extra `bench`" in capsys.readouterr().err


async def test_a_limit_may_be_waited_for() -> None:
    async def ten(seconds: float) -> float:
        return 10.0

    assert await beside(lambda s: 4.0, ten, 0.1) == (10.0, 4.0)
    assert await beside(ten, ten, 0.1) == (10.0, 10.0)


def test_a_load_that_comes_and_goes_meets_both_of_a_pair() -> None:
    load = [1.0, 9.0, 2.0, 5.0] * 10
    ratio, (low, high) = paired([second * 2 for second in load], load)
    assert (ratio, low, high) == pytest.approx((0.5, 0.5, 0.5))
    _, (low, high) = paired([second * 2 for second in load], list(reversed(load)))
    assert low < 0.5 < high


def test_an_interval_is_shown_with_its_ratio() -> None:
    row = Row("prompts in OpenCode 1, hung", 9.5, 10, "without plugin", 0.9, 0.97, interval=(0.931, 0.972))
    wanted = "0.95 × [0.93, 0.97] without plugin"
    assert wanted in table([row])
    assert f"| prompts in OpenCode 1, hung | 9.50/s | {wanted} |" in generate_performance._row(row.as_json())


def test_each_round_has_a_prompt_in_each_state_and_sessions_stay_young(monkeypatch: pytest.MonkeyPatch) -> None:
    class Project(OpenCodeApi):
        def create_session(self, title: str = "test", **body: Any) -> str:
            asked.append((self.project.name, title))
            return title

        def prompt(self, session: str, text: str, **more: Any) -> dict[str, Any]:
            asked.append((self.project.name, text))
            return {}

    asked: list[tuple[str, str]] = []
    for name, value in {"PROMPTS": 3, "WARM_UP": 1, "FRESH": 2, "REST_S": 0}.items():
        monkeypatch.setattr(opencode, name, value)
    times = opencode.prompt_times({name: Project(Path(name)) for name in ("plain", "hung")}, "hello", [])
    assert {name: len(taken) for name, taken in times.items()} == {"plain": 3, "hung": 3}
    for first in (0, 6):
        assert asked[first : first + 2] == [("plain", "test"), ("hung", "test")]
        for start in (first + 2, first + 4):
            assert sorted(asked[start : start + 2]) == [("hung", "hello"), ("plain", "hello")]
    assert len(asked) == 12


def test_a_peer_is_told_plainly() -> None:
    assert Row("a", 2, 1, "peer", is_peer=True).verdict == "ahead"
    assert Row("a", 1, 2, "peer", is_peer=True).verdict == "behind"


def test_the_plot_is_of_the_figures() -> None:
    figures = json.loads((DOCS / "performance.json").read_text())
    assert generate_performance.digest(figures) in (DOCS / "performance.svg").read_text()
    figures["rows"][0]["value"] += 1
    assert generate_performance.main(["--check"]) == 0
    labels = [bar[0] for bar in generate_performance.bars(figures)]
    assert labels and len(labels) == len(set(labels))


@pytest.mark.parametrize(("seconds", "verdict"), [(1.2, "aim met"), (2.0, "floor met"), (2.1, "BELOW FLOOR")])
def test_a_start_with_the_plugin_that_takes_more_than_twice_as_long_fails_the_bench(
    seconds: float, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = json.dumps({"seconds": {"with": [9.0, seconds, seconds], "without": [1.0, 0.5, 1.0]}})
    monkeypatch.setattr(opencode, "namespace_command", lambda: ["unshare"])
    monkeypatch.setattr(opencode, "binary_path", lambda: tmp_path / "opencode")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, measured))
    assert opencode._measure_starts(tmp_path / "starts").verdict == verdict
