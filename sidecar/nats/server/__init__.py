"""The embedded NATS server: its life, its process, its program."""
