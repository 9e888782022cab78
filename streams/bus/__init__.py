"""The event bus: its contract, the one in memory, subjects and headers of messages."""
