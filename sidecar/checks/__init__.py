"""What ``doctor`` looks at, and ``status`` in part: a table of small functions that return findings as data.

The checks only read, and answer in bounded time; ``mending`` holds what ``doctor --fix`` changes.
"""

from sidecar.checks.asking import NotAsked, SidecarSilent, ask_sidecar, refused_plugin, spool_size, torn_files
from sidecar.checks.check import Check, Fix, Level, counted, kept_text
from sidecar.checks.table import diagnose, quick_checks

__all__ = [
    "Check",
    "Fix",
    "Level",
    "NotAsked",
    "SidecarSilent",
    "ask_sidecar",
    "counted",
    "diagnose",
    "kept_text",
    "quick_checks",
    "refused_plugin",
    "spool_size",
    "torn_files",
]
