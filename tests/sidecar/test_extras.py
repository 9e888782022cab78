"""The command that adds an extra fits how the program was installed."""

from __future__ import annotations

import pytest

from sidecar.install.extras import extra_command


@pytest.mark.parametrize(
    ("prefix", "begins"),
    [
        ("/home/ada/.local/share/pipx/venvs/opencode-durable-stream", "pipx inject opencode-durable-stream "),
        ("/home/ada/.local/share/uv/tools/opencode-durable-stream", "uv pip install --python /home/ada/"),
        ("/home/ada/venv", "/home/ada/venv/bin/python -m pip install "),
    ],
)
def test_it_names_the_libraries_and_the_tool(prefix: str, begins: str) -> None:
    command = extra_command("notify", prefix)
    assert command.startswith(begins) and "'apprise" in command
    assert "ruff" not in command
