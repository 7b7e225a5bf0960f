"""What of FlockMQ other programs import: `flockmq.hooks` for hooks, `flockmq.testing` for a broker in a test."""
