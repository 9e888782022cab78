"""Parts of a conversation and of its changes are those of the whole."""

from __future__ import annotations

import pytest

from sidecar.read.changes.changes import files_of, sums, totals
from sidecar.read.story.changes import Changes
from sidecar.read.story.conversation import Telling
from sidecar.read.story.moment import Moment
from tests.sidecar.read.story.playing import RECORDINGS, recorded, snapshot

NAMES = RECORDINGS[::9]


@pytest.mark.parametrize("name", NAMES)
def test_some_turns_are_those_of_the_whole(name: str) -> None:
    records = recorded(name)
    story = snapshot(records)
    telling = Telling(Moment(story, {record.event.stream_id for record in records}, story.head))
    every = [(root.id, turn) for root in telling.whole() for turn in root.turns]
    assert sum(map(telling.count, telling.roots)) == len(every)
    assert telling.sizes(0, len(every)) == [len(turn.items) for _, turn in every]
    for begin in range(len(every) + 1):
        assert [(root.id, turn) for root, turn in telling.turns(begin, 2)] == every[begin : begin + 2]
        for _, turn in telling.turns(begin, 1, 3):
            assert turn.items == every[begin][1].items[-3:]
    for root in telling.roots:
        assert telling.last(root, 2) == [turn for name, turn in every if name == root.id][-2:]


@pytest.mark.parametrize("name", NAMES)
def test_sums_of_changes_are_those_of_their_turns(name: str) -> None:
    records = recorded(name)
    story, streams = snapshot(records), {record.event.stream_id for record in records}
    for after in range(-1, len(records), 5):
        changes = Changes(Moment(story, streams, story.head), after)
        turns = changes.turns()
        files = [{"file": file, "edits": len(edits), **sums(edits)} for file, edits in files_of(turns).items()]
        assert sorted(changes.files(), key=str) == sorted(files, key=str)
        assert changes.totals() == totals(turns) and changes.count() == len(turns)
        assert changes.turns(2) == turns[-2:]
