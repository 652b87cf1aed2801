"""Known ways to get transactions wrong, each planted over the core; their simulator must notice them."""
