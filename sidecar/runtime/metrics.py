"""What the runtime counts, as a protocol: ``sidecar/metrics.py`` implements it with a library."""

from __future__ import annotations

from typing import Protocol


class Metrics(Protocol):
    """Telemetry of the runtime (seed 003, "Observability Hooks")."""

    def received(self, agent: str) -> None: ...
    def processed(self, agent: str, seconds: float) -> None: ...
    def emitted(self, agent: str, count: int) -> None: ...
    def duplicate(self, agent: str) -> None: ...
    def failed(self, agent: str) -> None: ...
    def dead(self, agent: str) -> None: ...
    def retried(self, kind: str) -> None: ...
    def committed(self, seconds: float, events: int) -> None: ...


class NoMetrics:
    """Counts nothing."""

    def received(self, agent: str) -> None:
        """See ``Metrics``."""

    def processed(self, agent: str, seconds: float) -> None:
        """See ``Metrics``."""

    def emitted(self, agent: str, count: int) -> None:
        """See ``Metrics``."""

    def duplicate(self, agent: str) -> None:
        """See ``Metrics``."""

    def failed(self, agent: str) -> None:
        """See ``Metrics``."""

    def dead(self, agent: str) -> None:
        """See ``Metrics``."""

    def retried(self, kind: str) -> None:
        """See ``Metrics``."""

    def committed(self, seconds: float, events: int) -> None:
        """See ``Metrics``."""
