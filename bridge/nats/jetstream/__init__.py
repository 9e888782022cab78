"""NATS JetStream: connection, streams, publishing, pulling, event bus. The only package of the NATS side with I/O."""
