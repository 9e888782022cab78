"""The append-only log: events, the store contract, the store, and pure folds over records.

Layer rule: nothing here imports ``bridge`` or ``sidecar`` (``tools/layers.py``).
"""
