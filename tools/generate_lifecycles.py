"""Write ``docs/lifecycles.md``: the states of intents, notices, checkpoints and alerts, from the tables in the code.

``--check`` writes nothing and fails if the page is not as it would be written.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from sidecar.orchestrator.alerts import ALERT
from sidecar.orchestrator.checkpoints import CHECKPOINT
from sidecar.orchestrator.lifecycle import INTENT, NOTICE

PAGE = ROOT / "docs" / "lifecycles.md"

HEAD = """# Life cycles

Each arrow is an event in the stream of a built-in agent and leads to the state after that event. An event without an
arrow from the current state changes nothing. `make docs` writes this page from the tables in `sidecar/orchestrator/`.
"""

CHAPTERS = (
    (
        "Intent",
        "One piece of [background work](background.md). `refused` means that a limit prevented it. A phantom, the\n"
        "session that runs an intent, has no states of its own: from `starting` on, its states are the intent's.",
        INTENT,
    ),
    ("Notice", "One message for a session. Only `observed` confirms delivery.", NOTICE),
    ("Checkpoint", "One question for a person; see [notify.md](notify.md).", CHECKPOINT),
    ("Alert", "One piece of news for a person; see [notify.md](notify.md).", ALERT),
)


def diagram(table: dict[str, dict[str, str]]) -> str:
    """A state diagram in Mermaid's language. Events between the same two states share an arrow.

    A state begins a life if it is the table's first, or if no arrow leads to it.
    """
    arrows: dict[tuple[str, str], list[str]] = {}
    for state, events in table.items():
        for event, target in events.items():
            arrows.setdefault((state, target), []).append(event.partition(".")[2] or event)
    reached = {target for _, target in arrows}
    first = next(iter(table))
    lines = ["stateDiagram-v2"]
    lines += [f"    [*] --> {state}" for state in table if state == first or state not in reached]
    lines += [f"    {state} --> {target}: {', '.join(events)}" for (state, target), events in arrows.items()]
    lines += [f"    {state} --> [*]" for state, events in table.items() if not events]
    return "\n".join(lines)


def main() -> int:
    """Write or check the page."""
    text = HEAD
    for title, sentence, table in CHAPTERS:
        text += f"\n## {title}\n\n{sentence}\n\n```mermaid\n{diagram(table)}\n```\n"
    if "--check" in sys.argv[1:]:
        if not PAGE.exists() or PAGE.read_text() != text:
            print(f"{PAGE.relative_to(ROOT)} is not fresh: run `make docs`")
            return 1
        return 0
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
