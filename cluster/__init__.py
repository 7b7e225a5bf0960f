"""Many nodes as one broker. Imported only where a Redis is named; needs the redis-py library."""
