"""NATS's side of the bridge: subjects, headers, payloads, streams and the mirror's messages. All pure."""
