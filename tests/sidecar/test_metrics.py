"""The sidecar's metrics: bounded labels, a registry of its own, and those that docs/operations.md names."""

from __future__ import annotations

import re
import socket
import stat
from pathlib import Path
from typing import Any, get_args
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from sidecar.agents.metrics import Counted
from sidecar.care.metrics import AGENT_FACTS, FACTS, MIRROR_STATES, SidecarMetrics
from sidecar.home import Home
from sidecar.mirror.follower import MirrorTask
from sidecar.record.playing.play import play
from streams.identity import system_identity
from tests.real.opencode import free_port
from tests.sidecar.cli.helpers import run
from tests.sidecar.support import HANG_SECONDS, RECORDINGS, REPOSITORY, serving


def samples(text: str) -> dict[tuple[str, str], float]:
    """The values by name and label."""
    families = text_string_to_metric_families(text)
    return {(s.name, "".join(s.labels.values())): s.value for f in families for s in f.samples}


def test_what_the_runtime_says_is_counted() -> None:
    metrics = SidecarMetrics(agents=["oracle"], kinds=["http"])
    metrics.count("received", "oracle", 1)
    metrics.count("processed", "oracle", 0.03)
    metrics.count("emitted", "oracle", 3)
    metrics.count("duplicate", "oracle", 1)
    metrics.count("failed", "oracle", 1)
    metrics.count("dead", "oracle", 1)
    metrics.count("retried", "http", 1)
    metrics.committed(0.002, 5)
    found = samples(metrics.text().decode())
    assert found["events_received_total", "oracle"] == 1
    assert found["events_emitted_total", "oracle"] == 3
    assert found["event_processing_duration_ms_sum", "oracle"] == 30
    assert found["event_processing_duration_ms_bucket", "oracle25.0"] == 0
    assert found["event_processing_duration_ms_bucket", "oracle50.0"] == 1
    for name in ("agent_duplicates", "agent_failures", "dead_letters"):
        assert found[f"durable_stream_{name}_total", "oracle"] == 1
    assert found["durable_stream_effect_retries_total", "http"] == 1
    assert found["durable_stream_commit_duration_ms_sum", ""] == 2
    assert found["durable_stream_commit_events_sum", ""] == 5


@given(st.lists(st.text(), max_size=30))
def test_labels_cannot_explode(names: list[str]) -> None:
    metrics = SidecarMetrics(agents=["oracle"], kinds=["http"])
    for name in ("oracle", *names):
        for counted in get_args(Counted):
            metrics.count(counted, name, 0.1)
    labels = {(name, value) for f in metrics.registry.collect() for s in f.samples for name, value in s.labels.items()}
    assert {name for name, _ in labels} <= {"agent", "kind", "le"}
    assert {value for name, value in labels if name != "le"} <= {"oracle", "http", "other"}


def test_a_part_that_is_off_has_no_value() -> None:
    status: dict[str, Any] = {"log": {"head": 7}, "links": [{}, {}], "nats": {"connected": False, "mirror": None}}
    metrics = SidecarMetrics(lambda: status)
    found = samples(metrics.text().decode())
    assert found["durable_stream_log_head", ""] == 7 and found["durable_stream_links", ""] == 2
    assert found["durable_stream_nats_connected", ""] == 0
    assert ("durable_stream_mirror_lag", "") not in found
    status["nats"]["mirror"] = {"lag": 4, "state": "publishing"}
    found = samples(metrics.text().decode())
    assert found["durable_stream_mirror_lag", ""] == 4
    states = {label: value for (name, label), value in found.items() if name == "durable_stream_mirror_state"}
    assert states == dict.fromkeys((*MIRROR_STATES, "other"), 0) | {"publishing": 1}
    status["nats"]["mirror"]["state"] = "dancing"
    assert samples(metrics.text().decode())["durable_stream_mirror_state", "other"] == 1


def test_the_mirrors_states_are_those_that_it_names() -> None:
    named = re.search(r"``state`` \((.*?)\)", MirrorTask.status.__doc__ or "", re.DOTALL)
    assert named is not None and re.findall(r"``(\w+)``", named[1]) == list(MIRROR_STATES)


def test_each_metric_says_its_meaning_and_the_page_names_only_such() -> None:
    metrics = SidecarMetrics()
    registered = {f.name + ("_total" if f.type == "counter" else ""): f for f in metrics.registry.collect()}
    assert all(family.documentation for family in registered.values())
    assert {fact.name for fact in AGENT_FACTS} <= registered.keys()
    page = (REPOSITORY / "docs" / "operations.md").read_text()
    section = page.partition("\n## Metrics\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(durable_stream_\w+)`", section))
    assert named and named <= registered.keys()


async def test_a_running_sidecar_is_scraped_as_the_printed_config_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, port = Home(tmp_path / 'a "home"'), free_port()
    assert run(home.path, "metrics").code == 1
    assert "[metrics-off]" in run(home.path, "metrics", "--scrape-config").err
    home.create()
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    with (tmp_path / "loaded").open("w") as output, serving(home, output=output):
        monkeypatch.undo()
        home.config_path.write_text(f"[metrics]\nport = {port}\n")
        assert "durable-stream stop" in run(home.path, "metrics", "--scrape-config").err
    loaded = (tmp_path / "loaded").read_text()
    assert "websockets" in loaded and "uvicorn" not in loaded and "starlette" not in loaded
    with serving(home):
        await play(home, RECORDINGS / "chat.jsonl", nonce=system_identity().nonce)
        printed = run(home.path, "metrics", "--scrape-config")
        assert printed.code == 0 and printed.err == ""
        assert f'["127.0.0.1:{port}"]' in printed.out
        (file,) = re.findall(r"credentials_file: (.*)", printed.out)
        credentials = Path(file[1:-1].replace('\\"', '"'))
        assert credentials.parent == home.path and stat.S_IMODE(credentials.stat().st_mode) == 0o600
        bearer = credentials.read_text().strip()
        assert bearer != home.read_token()

        address = f"http://127.0.0.1:{port}/metrics"
        with urlopen(Request(address, headers={"Authorization": f"Bearer {bearer}"}), timeout=HANG_SECONDS) as answer:
            scraped = samples(answer.read().decode())
        with pytest.raises(HTTPError) as refused:
            urlopen(Request(address, headers={"Authorization": f"Bearer {home.read_token()}"}), timeout=HANG_SECONDS)
        refused.value.close()
        assert refused.value.code == 401

        asked = samples(run(home.path, "metrics").out)
        assert scraped.keys() == asked.keys()
        head = scraped["durable_stream_log_head", ""]
        assert head == asked["durable_stream_log_head", ""] >= 5
        written = scraped["durable_stream_capture_events_total", ""]
        assert scraped["durable_stream_commit_events_sum", ""] == written == head + 1
        assert 0 < scraped["durable_stream_commit_duration_ms_count", ""] <= head + 1
        assert asked["durable_stream_scrapes_refused_total", ""] == 1
        traces = {f"durable_stream_traces_{each}" for each in ("lag", "sent_total", "refused_total", "failures_total")}
        team = {f"durable_stream_team_{each}" for each in ("lag", "failures")}
        off = {"durable_stream_mirror_lag", *traces, *team}
        assert {fact.name for fact in FACTS} - {name for name, _ in scraped} == off
        assert f"metrics: port {port}" in run(home.path, "status").out


async def test_a_sidecar_whose_ports_for_pages_are_taken_records_and_says_so(home: Home) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        home.config_path.write_text(f"[metrics]\nport = {port}\n[notify]\nanswer_port = {port}\n")
        with serving(home):
            await play(home, RECORDINGS / "chat.jsonl", nonce=system_identity().nonce)
            asked = run(home.path, "metrics")
            assert samples(asked.out)["durable_stream_log_head", ""] >= 5
            status = run(home.path, "status", "--json").objects()[0]
            notes = [note for note in status["notes"] if f"port {port}" in note]
            assert len(notes) == 2 and "`port` in [metrics]" in notes[0] and "`answer_port` in [notify]" in notes[1]
            checks = run(home.path, "doctor", "--json").objects()
            assert [(c["name"], c["level"]) for c in checks if f"port {port}" in c["text"]] == [("pages", "note")] * 2
            assert "[port-taken]" in run(home.path, "metrics", "--scrape-config").err
            assert "[port-taken]" in home.log_path.read_text()
