"""Paths that say who recorded a session are replaced, and nothing else is."""

from __future__ import annotations

import pytest

from sidecar.read.redacted import Redaction
from streams.lineage import CREATED
from streams.store import Record
from tests.sidecar.read.conversations import happened


def redacted(text: str, *directories: str, home: str = "/home/ada") -> str:
    redaction = Redaction(home)
    for directory in directories:
        redaction.record(Record(happened(CREATED, directory=directory), 0, 0, ""))
    record = redaction.record(Record(happened("execution.output", text={"a": [text]}), 1, 1, "the hash"))
    assert record.hash == "the hash"
    return str(record.event.payload["text"]["a"][0])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/ada/shop/src/a.py", "/project/src/a.py"),
        ("In /home/ada/shop.", "In /project."),
        ("/home/ada/shop-old/a and /home/ada/shop.bak", "~/shop-old/a and ~/shop.bak"),
        ("/home/ada/copy/a", "/project2/a"),
        ("/home/ada/shop/inner/a", "/project3/a"),
        ("file:///home/bob/x", "file://~/x"),
        ('"/Users/eve/x","/home/bob"', '"~/x","~"'),
        (r"C:\Users\eve\x", r"~\x"),
        ("/usr/lib and a/b", "/usr/lib and a/b"),
        ("ada wrote it", "ada wrote it"),
    ],
)
def test_directories_of_projects_and_homes(text: str, expected: str) -> None:
    assert redacted(text, "/home/ada/shop", "/home/ada/copy/", "/home/ada/shop/inner") == expected


def test_a_home_elsewhere_and_no_directory() -> None:
    assert redacted("/root/a /rooted/a", home="/root") == "~/a /rooted/a"
    assert redacted("/a/b", "/", "", home="/") == "/a/b"
