"""The remote store: one process serves its store to others, over any transport."""
