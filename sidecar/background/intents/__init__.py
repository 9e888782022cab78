"""The agent ``intents``: background work from its registration to the message that reports its result."""
