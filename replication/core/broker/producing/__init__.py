"""Requests that write to logs, and the payloads in which their batches come."""
