"""The event bus: its contract, the one in memory, message subjects and headers."""
