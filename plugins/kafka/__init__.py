"""Kafka's wire protocol beside a node: for now its messages, decoded and encoded by tables."""
