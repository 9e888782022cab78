"""The event bus: its contract, an in-memory bus, and the subjects and headers of messages."""
