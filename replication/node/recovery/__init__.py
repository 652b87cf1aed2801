"""Repair of a store from the folders of nodes, and copies of Kafka's folders."""
