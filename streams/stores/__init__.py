"""Backends of ``streams.store.StreamStore``: one file each, group commit and planning shared."""
