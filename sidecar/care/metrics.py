"""Metrics in the Prometheus text format: counters of the sidecar's parts, and values that are read from ``status`` at
each scrape.

The number of series is bounded: the only labels are ``agent`` and ``kind``, and a value that is not configured becomes
``other``. Nothing in this module is global: each sidecar has its own registry.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

OTHER: Final = "other"

PROCESSING_MS: Final = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 60_000)
COMMIT_MS: Final = (0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 5000)
BATCH_EVENTS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)

MIRROR_STATES: Final = ("waiting", "resuming", "forgetting", "publishing", "idle")


class Fact(NamedTuple):
    """A metric that is read from the value at ``path`` in ``status``. The metric is absent if there is no value."""

    name: str
    path: tuple[str, ...]
    help: str

    @property
    def is_counter(self) -> bool:
        """Whether the metric is a counter: by Prometheus convention, its name then ends in ``_total``."""
        return self.name.endswith("_total")


FACTS: Final = (
    Fact("durable_stream_log_head", ("log", "head"), "Position of the last durable record, -1 in an empty log"),
    Fact("durable_stream_links", ("links",), "Linked plugins"),
    Fact("durable_stream_ingest_waiting", ("waiting",), "Accepted hooks that are not durable yet"),
    Fact("durable_stream_spool_files", ("spool", "files"), "Spools that are not recorded yet"),
    Fact("durable_stream_spool_bytes", ("spool", "bytes"), "Size of the spools that are not recorded yet, in bytes"),
    Fact("durable_stream_capture_events_total", ("counts", "appended"), "Captured events that were recorded"),
    Fact(
        "durable_stream_capture_duplicates_total",
        ("counts", "duplicates"),
        "Captured events that had already been recorded",
    ),
    Fact("durable_stream_capture_gaps_total", ("gaps",), "Gaps in the capture, where hooks were lost"),
    Fact("durable_stream_agents_not_loaded", ("worker", "problems"), "Agents and effects that cannot be loaded"),
    Fact("durable_stream_nats_connected", ("nats", "connected"), "1 while NATS is connected"),
    Fact("durable_stream_mirror_lag", ("nats", "mirror", "lag"), "Records that the mirror has not published yet"),
    Fact("durable_stream_traces_lag", ("otel", "lag"), "Records whose ended spans have not been sent yet"),
    Fact("durable_stream_traces_sent_total", ("otel", "sent"), "Spans that the receiver of traces accepted"),
    Fact("durable_stream_traces_refused_total", ("otel", "refused"), "Spans that the receiver of traces refused"),
    Fact("durable_stream_traces_failures_total", ("otel", "failures"), "Failed attempts to read or send spans"),
    Fact("durable_stream_team_lag", ("team", "lag"), "Records that the team's Postgres does not have yet"),
    Fact("durable_stream_team_failures", ("team", "failures"), "Failed attempts to copy to it since the last success"),
    Fact(
        "durable_stream_scrapes_refused_total",
        ("pages", "metrics", "refused"),
        "Refused requests for the metrics",
    ),
)
AGENT_FACTS: Final = (
    Fact("durable_stream_agent_health", ("health",), "0 if the agent is ready, 1 if it is degraded, 2 if it failed"),
    Fact("durable_stream_agent_waiting", ("waiting",), "Commands and events waiting for the agent"),
    Fact("durable_stream_agent_lag", ("lag",), "Records in the log that the agent has not seen"),
    Fact("durable_stream_agent_dead_letters", ("dead",), "Dead letters that are open"),
    Fact("durable_stream_agent_effects", ("effects",), "Effects that are not finished"),
    Fact("durable_stream_agent_effects_in_doubt", ("in_doubt",), "Effects that may or may not have happened"),
)
"""The metrics that are read from each agent's entry in ``status``."""

HEALTH: Final[Mapping[Any, int]] = {"READY": 0, "DEGRADED": 1, "FAILED": 2}

MIRROR_STATE: Final = "durable_stream_mirror_state"


class SidecarMetrics:
    """The metrics of one sidecar, whose ``status`` is read at each scrape. Call it from its event loop.

    ``agents`` and ``kinds`` name the loaded agents and kinds of effects: the labels ``agent`` and ``kind`` have only
    these values and ``other``.
    """

    def __init__(
        self,
        status: Callable[[], Mapping[str, Any]] = dict,
        *,
        agents: Collection[str] = (),
        kinds: Collection[str] = (),
    ) -> None:
        self._agents, self._kinds = frozenset(agents), frozenset(kinds)
        self.registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=self.registry)

        self._counters = {
            "received": counter("events_received", "Commands and events pulled for an agent", "agent"),
            "emitted": counter("events_emitted", "Events that an agent emitted", "agent"),
            "duplicate": counter("durable_stream_agent_duplicates", "Deliveries whose key was already known", "agent"),
            "failed": counter("durable_stream_agent_failures", "Deliveries that failed", "agent"),
            "dead": counter("durable_stream_dead_letters", "Deliveries that became dead letters", "agent"),
            "retried": counter("durable_stream_effect_retries", "Retried effects", "kind"),
        }
        self._processing = Histogram(
            "event_processing_duration_ms",
            "Time from an input's arrival at the agent until its outcome is durable, in milliseconds",
            ["agent"],
            registry=self.registry,
            buckets=PROCESSING_MS,
        )
        self._commit = Histogram(
            "durable_stream_commit_duration_ms",
            "Time from an append until it is durable, in milliseconds",
            registry=self.registry,
            buckets=COMMIT_MS,
        )
        self._batch = Histogram(
            "durable_stream_commit_events", "Events in one append", registry=self.registry, buckets=BATCH_EVENTS
        )
        self.registry.register(_StatusCollector(status, self._agent))

    def text(self) -> bytes:
        """All metrics, in the Prometheus text format 0.0.4."""
        return generate_latest(_WithoutCreationTimes(self.registry))

    def count(self, what: str, of: str, much: float) -> None:
        """See ``agents.metrics.Count``."""
        if what == "commit_seconds":
            self._commit.observe(much * 1000)
        elif what == "commit_events":
            self._batch.observe(much)
        elif what == "processed":
            self._processing.labels(self._agent(of)).observe(much * 1000)
        else:
            known = self._kinds if what == "retried" else self._agents
            self._counters[what].labels(of if of in known else OTHER).inc(much)

    def committed(self, seconds: float, events: int) -> None:
        self.count("commit_seconds", "", seconds)
        self.count("commit_events", "", events)

    def _agent(self, agent: str) -> str:
        return agent if agent in self._agents else OTHER


class _StatusCollector(Collector):
    def __init__(self, status: Callable[[], Mapping[str, Any]], label: Callable[[str], str]) -> None:
        self._status, self._label = status, label

    def describe(self) -> Iterator[Metric]:
        """The metrics without values, because registering must not ask for the status."""
        return self._families({})

    def collect(self) -> Iterator[Metric]:
        return self._families(self._status())

    def _families(self, status: Mapping[str, Any]) -> Iterator[Metric]:
        for fact in FACTS:
            kind = CounterMetricFamily if fact.is_counter else GaugeMetricFamily
            value = _at(status, fact.path)
            yield kind(fact.name, fact.help, value=None if value is None else float(value))
        agents = (status.get("worker") or {}).get("agents", ())
        for fact in AGENT_FACTS:
            gauge = GaugeMetricFamily(fact.name, fact.help, labels=["agent"])
            sums: Counts[str] = Counts()
            for agent in agents:
                sums[self._label(agent["name"])] += _at(agent, fact.path)
            for name, value in sums.items():
                gauge.add_metric([name], value)
            yield gauge
        states = GaugeMetricFamily(MIRROR_STATE, "1 for the mirror's current state", labels=["kind"])
        doing = _at(status, ("nats", "mirror", "state"))
        if doing is not None:
            shown = doing if doing in MIRROR_STATES else OTHER
            for state in (*MIRROR_STATES, OTHER):
                states.add_metric([state], float(state == shown))
        yield states


def _at(status: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    """The value at a path as a number, or the length of that value if it is a list; ``None`` if there is no value."""
    found: Any = status
    for name in path:
        if not isinstance(found, Mapping):
            return None
        found = found.get(name)
    return len(found) if isinstance(found, list | tuple) else HEALTH.get(found, found)


class _WithoutCreationTimes(Collector):
    """A registry without the ``…_created`` series. The library's own switch for them is global."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric
