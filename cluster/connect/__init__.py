"""Pipes from the log of a cluster to other systems: databases, Kafka, HTTP endpoints, topics of a broker."""
