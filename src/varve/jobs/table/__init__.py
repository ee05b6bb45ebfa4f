"""A topic as an Iceberg table."""
