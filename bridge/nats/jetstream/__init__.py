"""NATS JetStream: a connection, the streams on it, publishing, pulling, the event bus. The only room with I/O."""
