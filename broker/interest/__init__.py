"""The topic filters that this broker wants messages of, and those of other brokers with links to it."""
