"""Backends of ``streams.store.StreamStore``: memory, jsonl and sqlite, and what they share.

``StreamStore`` says what each must do; ``commit.py`` and ``plan.py`` hold group
commit and the planning of an append. ``streams/log.py`` picks the backend.
"""
