"""The files that agents changed, and who approved what."""
