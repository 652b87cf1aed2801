"""Real node processes under faults, and a check of their history outside the code under test."""
