"""Several shards: each is one instance of the protocol, on its own primary. The parts that a node has beside them."""
