"""Requests of clients and nodes: who may send them, their bounds, their way to the broker and back."""
