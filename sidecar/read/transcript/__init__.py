"""A session as a conversation: its model, and the same model as Markdown and HTML."""
