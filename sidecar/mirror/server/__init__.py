"""The embedded NATS server: its states, its process, its program."""
