"""Translates between the log and other systems: OpenCode's hooks and NATS.

Layer rule: imports ``streams``, never ``sidecar`` (``tests/test_layers.py``).
"""
