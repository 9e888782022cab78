"""Looks after the log and the installation: upkeep, pruning, exports, checks, metrics and the log file."""
