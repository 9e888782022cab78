"""The spans of one stream as they end, for a receiver that gets each of them once. Pure.

Each span is that of ``traces.otlp`` over the whole stream, with the same id. A session has ended once it rests for the
first time, when its turn ends, and the tool call that started it has ended, too; its later turns are below it all the
same. A deleted session has ended in any case.
"""

from __future__ import annotations

from typing import Any

from sidecar.read.past.spans import Span, Spans
from sidecar.read.past.traces import otlp_span, parent_of
from streams.lineage import ENDED
from streams.store import Record


class Ending:
    """A fold over the records of a stream, in position order. Keeps what is open, and a span for each session."""

    def __init__(self) -> None:
        self._spans = Spans()
        self._known: dict[str, Span] = {}
        """What is open, all sessions, and the calls that started one."""
        self._sent: set[str] = set()
        """Those of the known spans that have been returned."""

    def apply(self, record: Record) -> list[dict[str, Any]]:
        """Apply one record; return the spans that ended with it, as OTLP/JSON."""
        self._spans.apply(record)
        self._known |= {span.id: span for span in self._spans.found}
        self._spans.found.clear()
        ended = [span for span in self._known.values() if self._has_ended(span, record)]
        found = []
        for span in ended:
            self._sent.add(span.id)
            session = self._known[f"session:{span.session}"]
            found.append(otlp_span(span, parent_of(span, self._known), session, record.event.ts))
        for span in ended:
            if span.kind != "session" and not any(each.parent == span.id for each in self._known.values()):
                del self._known[span.id]
                self._sent.discard(span.id)
        return found

    def _has_ended(self, span: Span, record: Record) -> bool:
        if span.id in self._sent:
            return False
        if span.kind != "session":
            return span.end is not None
        call = self._known.get(span.parent)
        rests = span.state != "running" and (call is None or call.kind != "tool" or call.end is not None)
        return rests or (record.event.type == ENDED and record.event.payload.get("session") == span.session)
