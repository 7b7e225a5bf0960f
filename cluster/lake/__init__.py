"""The messages of a cluster as rows of Delta or Iceberg tables, each exactly once, without Spark."""
