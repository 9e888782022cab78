"""Feeding recordings of OpenCode 2 to its translator in tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bridge.opencode.capture.v2.shapes import HostEvent, child_of, read_event, session_info
from bridge.opencode.capture.v2.translate import HostTranslator, Service
from streams.event import StreamEvent
from streams.identity import seeded_identity
from tests.bridge.opencode.playing import Log

RECORDINGS = Path(__file__).parents[2] / "recordings" / "opencode2"
SERVICE = Service("service-1", "0.0.0-next-16350", 4321)


def names() -> list[str]:
    """The names of all recordings of OpenCode 2."""
    return sorted(path.stem for path in RECORDINGS.glob("*.jsonl"))


class Recording:
    """A recording: the live events, and what the service's API said at the end."""

    def __init__(self, name: str) -> None:
        self.live: list[dict[str, Any]] = []
        self.sessions: dict[str, dict[str, Any]] = {}
        self.logs: dict[str, list[dict[str, Any]]] = {}
        for line in (RECORDINGS / f"{name}.jsonl").read_text().splitlines():
            row = json.loads(line)
            if "type" in row:
                self.live.append(row)
            elif "log" in row:
                self.logs[row["of"]] = row["log"]
            elif row.get("session"):
                self.sessions[row["session"]["id"]] = row["session"]

    def events(self) -> list[HostEvent]:
        """All events: the durable ones of the service's log, and the asks where the live stream had them."""
        durable = {(s, row["durable"]["seq"]): row for s, log in self.logs.items() for row in log if "durable" in row}
        found: list[HostEvent] = []
        for row in self.live:
            event = read_event(row)
            if event is None:
                continue
            found.append(event)
            if event.seq is not None:
                durable.pop((event.session or "", event.seq), None)
        found += [event for row in durable.values() if (event := read_event(row)) is not None]
        # A stable order: each session's own numbers, else as announced.
        order = {id(event): place for place, event in enumerate(found)}
        found.sort(key=lambda event: (event.t or 0, order[id(event)]))
        return found


def as_released(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the preview in the names of OpenCode 2's release; not run, because no binary of it is available.

    Sources, in anomalyco/opencode: packages/schema/src/session-event.ts for the session's events and ``result``,
    packages/schema/src/form.ts for the ``mode`` of a form, packages/protocol/src/groups/permission.ts for ``decision``.
    """
    row = json.loads(json.dumps(row))
    data = row["data"]
    match row["type"]:
        case "session.input.admitted":
            row["type"] = "session.inbox.enqueued"
            given = data.pop("input")
            item = {"type": given["type"], "payload": given["data"], "delivery": given["delivery"]}
            data |= {"inboxID": data.pop("inputID"), "item": item}
        case "session.input.promoted":
            row["type"], data["inboxID"] = "session.inbox.delivered", data.pop("inputID")
        case "session.created":
            info = data.pop("info")
            data |= {name: info[name] for name in ("slug", "projectID", "agent", "model", "parentID") if name in info}
            data["location"] = {"directory": info["directory"]}
        case "session.tool.success" if "sessionID" in data.get("metadata", {}):
            data["result"] = data.pop("metadata")
        case "permission.replied":
            data["decision"] = data.pop("reply")
        case "form.created":
            data["form"]["mode"] = "form"
    for called in (data, data.get("source"), data.get("form", {}).get("metadata", {}).get("tool")):
        if isinstance(called, dict) and "callID" in called:
            called["id"] = called.pop("callID")
    return row


class Player2:
    """A sidecar's translator of OpenCode 2 over a log."""

    def __init__(self, log: Log | None = None) -> None:
        self.log = log if log is not None else Log()
        self.identity = seeded_identity(3)
        self.translator = HostTranslator(self.identity, self.log.state())
        self._created: dict[str, HostEvent] = {}

    def feed(self, events: list[HostEvent], infos: dict[str, dict[str, Any]], service: Service = SERVICE) -> None:
        for event in events:
            self.translator.hint(event)
            self.place(event, infos, service)
            self.translator.feed(service, event)
            self.log.append(self.translator.drain().events)

    def place(self, event: HostEvent, infos: dict[str, dict[str, Any]], service: Service = SERVICE) -> None:
        if event.session and event.session not in self.translator.state.sessions:
            if event.name == "created":
                self._created[event.session] = event
                if session_info(event.data).get("parentID"):
                    return  # as the sidecar does
            known = self._created.get(event.session)
            info = known.data if known is not None else infos.get(event.session)
            if info is not None:
                self.translator.appear(service, info, known.t if known is not None else event.t)

    def crash(self) -> None:
        """Lose everything but the log, then read the sessions' logs again from where the log says."""
        self.translator = HostTranslator(self.identity, self.log.state())

    def back_fill(self, recording: Recording, session: str, service: Service = SERVICE) -> None:
        """Read a session's durable log as the sidecar does: children first, known events only remembered."""
        state = self.translator.state.sessions.get(session)
        if state is None:
            self.translator.appear(service, recording.sessions[session])
            state = self.translator.state.sessions[session]
        cursor, begin = state.host_seq, state.host_turn
        for row in recording.logs[session]:
            event = read_event(row)
            if event is None or event.seq is None or event.seq <= begin:
                continue
            child = child_of(event)
            if child is not None and child in recording.logs and event.seq > cursor:
                self.translator.hint(event)
                self.back_fill(recording, child, service)
            self.translator.feed(service, event, known=event.seq < cursor)
            self.log.append(self.translator.drain().events)

    def of(self, type_: str) -> list[StreamEvent]:
        return [event for event in self.log.events.values() if event.type == type_]

    def types(self) -> list[str]:
        return [event.type for event in self.log.events.values()]


def play2(name: str) -> Player2:
    """Return a player that was fed one whole recording, live."""
    player, recording = Player2(), Recording(name)
    player.feed(recording.events(), recording.sessions)
    return player


_TOLD = ("outcome", "trigger", "kind", "tool", "status", "finish", "text", "error", "name", "reply", "answers", "shell")


def summary(player: Player2) -> list[str]:
    """One line for each event of the log: type, actor, session, and what says most."""
    numbers: dict[str, int] = {}
    lines = []
    for event in player.log.events.values():
        session = numbers.setdefault(str(event.payload.get("session")), len(numbers))
        told = [f"{name}={event.payload[name]!r}" for name in _TOLD if name in event.payload]
        state = [str(event.payload["state"])] if event.type == "workflow.checkpoint" else []
        lines.append(" ".join([f"{session}", event.type, event.actor, *state, *told]))
    return lines


if __name__ == "__main__":
    for each in names():
        (RECORDINGS / f"{each}.events").write_text("".join(f"{line}\n" for line in summary(play2(each))))
