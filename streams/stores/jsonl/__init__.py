"""The jsonl backend: segments of lines."""
