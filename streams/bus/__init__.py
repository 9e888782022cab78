"""The event bus: its contract, its commands, and the subjects and headers of messages."""
