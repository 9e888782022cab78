"""Agents for tests, written as a user writes them: they import nothing of ours."""

from __future__ import annotations

from typing import Any


class Counter:
    """Counts commands; ``add`` returns an event, ``tell`` also a command, ``call`` an effect."""

    name = "counter"

    def __init__(self) -> None:
        self.total = 0
        self.results: list[Any] = []

    def receive(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        kind, payload = event["type"], event["payload"]
        if kind == "add":
            return [{"type": "counter.added", "payload": {"by": payload["by"], "was": self.total}}]
        if kind == "tell":
            added = {"type": "counter.added", "payload": {"by": 1, "was": self.total}}
            return [added, {"to": payload["to"], "type": "add", "payload": {"by": self.total + 1}}]
        if kind == "call":
            args = payload.get("args", {"n": payload.get("n", 0)})
            return [{"effect": payload["kind"], "payload": args, "node": "call"}]
        if kind.startswith("effect."):
            return [{"type": "counter.result", "payload": {"type": kind, "result": payload.get("result")}}]
        if kind == "fail":
            raise RuntimeError("as asked")
        if kind == "spoil":
            return [{"type": "counter.spoiled", "payload": {}}]
        return []

    def apply(self, event: dict[str, Any]) -> None:
        if event["type"] == "counter.added":
            self.total += event["payload"]["by"]
        elif event["type"] == "counter.result":
            self.results.append(event["payload"])
        elif event["type"] == "counter.spoiled":
            self.total = -1
            raise RuntimeError("cannot be applied")


class Other(Counter):
    name = "other"


class Watcher:
    """Listens to the log: counts failed steps, and tells ``counter`` about each."""

    name = "watcher"
    events = ("execution.step",)

    def __init__(self) -> None:
        self.failed = 0

    def receive(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        if event["payload"].get("status") == "broken":
            raise RuntimeError("as asked")
        if event["payload"].get("status") != "error":
            return []
        return [
            {"type": "watcher.failed", "payload": {"step": event["id"]}},
            {"to": "counter", "type": "add", "payload": {"by": 1}},
        ]

    def apply(self, event: dict[str, Any]) -> None:
        self.failed += event["type"] == "watcher.failed"
