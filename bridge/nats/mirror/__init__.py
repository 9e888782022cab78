"""The mirror of a log on JetStream: records to messages, publishing them, and comparing a stream with its log."""
