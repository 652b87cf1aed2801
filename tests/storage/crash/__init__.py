"""A process that writes a log is killed at random moments; what it left is opened and checked."""
