"""Kafka's serialization by schema, and the records of its controllers."""
