"""NATS JetStream: connection, streams, publishing, pulling, event bus. The only package of ``bridge`` with I/O."""
