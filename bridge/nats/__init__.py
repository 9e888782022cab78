"""The part of the bridge for NATS: subjects, headers, payloads, streams, connections, and the mirror's messages."""
