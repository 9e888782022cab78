"""The checks of ``doctor``, some of which ``status`` runs too: small functions that return findings as data.

Checks only read, and finish in bounded time. ``mending`` holds the changes that ``doctor --fix`` makes.
"""

from sidecar.care.checks.asking import NotAsked, SidecarSilent, ask_sidecar, refused_plugin, spool_size, torn_files
from sidecar.care.checks.check import Check, Fix, Level, counted, kept_text
from sidecar.care.checks.table import diagnose, quick_checks

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
