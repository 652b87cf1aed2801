"""Known ways to get consumer groups wrong, each planted over the core; the groups' simulator must notice them."""
