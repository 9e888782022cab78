"""Translation between the log and other worlds: OpenCode's hooks, NATS.

Layer rule: imports ``streams``, never ``sidecar`` (``tests/test_layers.py``).
"""
