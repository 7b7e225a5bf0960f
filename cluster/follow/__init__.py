"""Programs that follow the log of a cluster: each batch of messages goes to a target, and the position behind it."""
