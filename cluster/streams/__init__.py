"""The log of messages in Redis, as streams read it."""
