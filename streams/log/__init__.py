"""The log over its directory: opening, reading, verifying."""
