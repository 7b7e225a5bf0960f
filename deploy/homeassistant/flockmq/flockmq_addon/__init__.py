"""FlockMQ as an add-on of Home Assistant: it starts a node, and stands between the node and the Supervisor."""
