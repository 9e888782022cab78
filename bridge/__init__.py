"""Translates between the log and other systems: OpenCode's hooks and NATS.

Layer rule: imports ``streams``, never ``sidecar`` (``tools/layers.py``).
"""
