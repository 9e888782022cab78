"""The append-only log: events, the store contract, its backends, and pure folds over records.

Layer rule: nothing here imports ``bridge`` or ``sidecar`` (``tools/layers.py``).
"""
