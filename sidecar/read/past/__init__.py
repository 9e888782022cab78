"""A session at any moment of the past: its records, folds that go back, comparison, spans, costs and traces."""
