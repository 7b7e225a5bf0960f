"""The topic filters that this broker wants messages of, and the filters of other brokers with links to it."""
