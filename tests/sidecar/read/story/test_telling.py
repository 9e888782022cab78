"""The conversation and the changes at every moment of a recording."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from sidecar.read.changes.changes import Changes as Fold
from sidecar.read.changes.changes import files_of, sums, totals
from sidecar.read.story.changes import Changes
from sidecar.read.story.moment import Moment
from sidecar.read.story.telling import Telling
from sidecar.read.transcript.conversation import Conversation
from tests.sidecar.read.story.playing import RECORDINGS, recorded, snapshot
from tests.streams.sizes import size

NAMES = RECORDINGS[:: size("STORY", 9) or 1]


def plain(value: Any) -> Any:
    if is_dataclass(value):
        return {"": type(value).__name__, **{each.name: plain(getattr(value, each.name)) for each in fields(value)}}
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("name", NAMES)
def test_each_moment_is_what_the_folds_say(name: str) -> None:
    records = recorded(name)
    story, streams = snapshot(records), {record.event.stream_id for record in records}
    conversation, changes = Conversation(), Fold(with_diffs=True)
    for record in records:
        conversation.apply(record)
        changes.apply(record)
        moment = Moment(story, streams, record.position)
        assert plain(Telling(moment).whole()) == plain(conversation.roots), record.position
        for after in (-1, record.position // 2):
            turns, found = changes.turns(after), Changes(moment, after)
            assert [turn.as_json() for turn in found.turns(with_diffs=True)] == [turn.as_json() for turn in turns]
            assert found.totals() == totals(turns)
            files = [{"file": file, "edits": len(edits), **sums(edits)} for file, edits in files_of(turns).items()]
            assert sorted(found.files(), key=str) == sorted(files, key=str)
