"""Clients for code without trio: each runs its trio twin in a thread."""
