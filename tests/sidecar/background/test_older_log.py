"""A log of a version that wrote more records about background work: it opens wherever it was cut off, and goes on.

``older_log.jsonl`` has one event a line: an intent with a worktree, from its registration to the message in its parent.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from sidecar.agents.inputs import effects_stream
from sidecar.background.intents.intents import NAME, IntentAgent
from sidecar.background.people.alerts import AlertAgent
from sidecar.background.people.checkpoints import CheckpointAgent
from sidecar.background.reading import read_intents, read_notices
from sidecar.config import PhantomConfig
from sidecar.notify_config import NotifyConfig
from streams.event import StreamEvent
from tests.memory import MemoryStore
from tests.sidecar.agents.kinds import Clock
from tests.sidecar.agents.support import records
from tests.sidecar.background.support import Script, bench

LINES = (Path(__file__).parent / "older_log.jsonl").read_text().splitlines()
RESULTS = {
    "worktree.add": {"directory": "/w/sub", "root": "/w", "base": "b", "repository": "/r"},
    "opencode.create": {"session": "ses_bg"},
    "opencode.prompt": {},
    "worktree.collect": {"ref": "refs/durable-stream/int_1", "files": [], "count": 0, "diff": "+one"},
    "opencode.wake": {"status": "sent", "kept": True},
    "opencode.toast": {"shown": True},
}


def ends_a_batch(event: StreamEvent) -> bool:
    return event.stream_id not in ("agent/intents", "agent/checkpoints", "agent/alerts") or "state" in event.metadata


async def test_it_goes_on_wherever_it_was_cut_off() -> None:
    older = [StreamEvent.parse(json.loads(line)) for line in LINES]
    captured = [event for event in older if not event.stream_id.startswith("agent/")]
    cuts = [n for n, event in enumerate(older, 1) if ends_a_batch(event)]
    assert len(cuts) > 25
    for cut in cuts:
        store, clock = MemoryStore(), Clock(1_700_000_100_000)
        await store.append(older[:cut])
        kinds = {kind: Script(result) for kind, result in RESULTS.items()}
        agents = (IntentAgent(PhantomConfig()), CheckpointAgent(), AlertAgent([], NotifyConfig()))
        async with bench(store, agents, kinds, clock, seed=5) as run:
            run._count = len(older)  # the keys of its commands are new ones
            await run.settled()
            for event in captured:
                if event not in older[:cut]:
                    await store.append([event])
                    await run.settled()
            intent = (await read_intents(store)).intents["int_1"]
            assert (intent.state, intent.result, intent.tokens) == ("completed", "forty two", 7), cut
            wakes = [row["state"] for row in await read_notices(store) if row["kind"] == "wake"]
            assert wakes == ["observed"], cut
        done = [r.event.payload for r in await records(store, effects_stream(NAME)) if r.event.payload.get("final")]
        acts = [each for each in done if each["kind"] in RESULTS]
        assert Counter(each["kind"] for each in acts) == dict.fromkeys(RESULTS.keys() - {"opencode.toast"}, 1), cut
        assert not any("error" in each for each in acts), cut
