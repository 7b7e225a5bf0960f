"""The sink `flockmq` for Spark: a message per row, to any MQTT broker."""
