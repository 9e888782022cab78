"""The tools that the model gets: what they cost, and that their descriptions say what a model needs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from bridge.opencode.link.protocol import RequestError
from sidecar.background.service import write_tools
from sidecar.background.tools import TOOLS, WAIT_MS, WaitArgs, check, tools_json
from sidecar.home import Home

MOST_TOKENS = 1500


def tokens(text: str) -> int:
    """An upper estimate: each mark is a token, and each word one for every six letters begun."""
    return sum(-(-len(word) // 6) for word in re.findall(r"\w+|[^\w\s]", text))


def sent(name: str) -> dict[str, Any]:
    """A tool as a request to a model contains it."""
    tool = tools_json()[name]
    parameters = {"type": "object", "properties": tool["args"], "required": tool["required"]}
    about = {"name": name, "description": tool["description"], "parameters": parameters}
    return {"type": "function", "function": about}


def test_all_tools_together_cost_little() -> None:
    # As OpenCode sends them; the real client's tests compare this.
    assert tokens(json.dumps([sent(name) for name in TOOLS])) < MOST_TOKENS


@pytest.mark.parametrize("name", TOOLS)
def test_a_description_says_when_when_not_and_what_comes_back(name: str) -> None:
    tool = tools_json()[name]
    text = tool["description"]
    assert re.search(r"\bUse it\b|\bRead\b", text), "when to use it"
    assert re.search(r"\b[Dd]o not\b", text), "when not"
    assert re.search(r"\bReturns\b", text), "what comes back"
    assert len(text) < 500
    for argument, schema in tool["args"].items():
        assert schema["description"], argument
    assert set(tool["required"]) <= set(tool["args"])


def test_every_tool_is_named_in_no_other_words() -> None:
    named = set(re.findall(r"\b[a-z]+_[a-z]+\b", json.dumps([each["description"] for each in tools_json().values()])))
    assert named <= set(TOOLS)


def test_the_plugin_waits_longer_than_a_tool_may() -> None:
    longest = next(each.le for each in WaitArgs.model_fields["seconds"].metadata if hasattr(each, "le"))
    assert longest * 1000 < WAIT_MS
    assert {name for name, each in tools_json().items() if "wait_ms" in each} == {"checkpoint_ask", "wait_for"}


def test_they_can_be_switched_off(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.create()
    for wanted in (True, False):
        write_tools(home, wanted, {})
        assert bool(json.loads((home.path / "tools.json").read_text())) == wanted


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("wait_for", {"what": "x", "seconds": 601}),
        ("wait_for", {}),
        ("checkpoint_ask", {"question": ""}),
        ("checkpoint_ask", {"question": "x", "options": "yes"}),
        ("stream_read", {"stream": "ses_1", "last": 201}),
        ("notify_user", {"message": "x", "channel": "phone"}),
        ("unknown", {}),
    ],
)
def test_a_wrong_call_is_refused(name: str, given: dict[str, object]) -> None:
    with pytest.raises(RequestError):
        check(name, given)
