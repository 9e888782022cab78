"""``python -m sidecar.cli``: the command line, if the script ``durable-stream`` is not installed."""

from __future__ import annotations

from sidecar.cli import main

main()
