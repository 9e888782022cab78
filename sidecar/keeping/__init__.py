"""Keeping the log: background upkeep, and pruning and forgetting with capture's state."""
