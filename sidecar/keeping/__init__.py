"""Keeping the log: background upkeep, and pruning and forgetting with what capture knows."""
