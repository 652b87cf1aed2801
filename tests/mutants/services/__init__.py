"""State machines under faults: histories that must be linearizable, and errors that must be noticed."""
