"""The jobs of `librdkafka.py`, by subject."""
