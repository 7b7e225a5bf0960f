"""Streams: a subscription that begins in the past, `$stream/SINCE/FILTER`, read from the log of messages."""
