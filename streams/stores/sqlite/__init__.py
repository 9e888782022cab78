"""The database of a log."""
