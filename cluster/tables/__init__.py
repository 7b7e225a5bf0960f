"""Tables of Delta and Iceberg, to which a writer commits rows exactly once."""
