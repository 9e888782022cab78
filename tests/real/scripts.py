"""Pieces of the scripts that the scripted model follows."""

from __future__ import annotations

import json
from typing import Any


def call(tool: str, **arguments: Any) -> str:
    """A call of a tool."""
    return f"CALL:{tool} {json.dumps(arguments)}"


def bash(command: str) -> str:
    """A command, with the shell tool of OpenCode 1."""
    return call("bash", command=command, description="d")


def task(prompt: str, **more: str) -> str:
    """Work of a subagent of OpenCode 1."""
    return call("task", description="work", prompt=prompt, subagent_type="general", **more)
