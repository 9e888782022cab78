"""Keeps the log in order: background upkeep, pruning, forgetting, and the files of ``export``."""
