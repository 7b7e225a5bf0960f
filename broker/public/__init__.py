"""The API of FlockMQ for other programs: `flockmq.hooks` for hooks, `flockmq.testing` for a broker in a test."""
