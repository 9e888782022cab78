"""Backends of ``streams.store.StreamStore``: jsonl and sqlite, and what they share.

``StreamStore`` says what each must do; ``commit.py`` does group commit, ``plan.py``
plans an append. ``streams/log/`` picks the backend.
"""
