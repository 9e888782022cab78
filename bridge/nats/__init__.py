"""The NATS side of the bridge: subjects, headers, payloads, streams, connections, and the mirror's messages."""
