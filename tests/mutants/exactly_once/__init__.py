"""Known ways to count an input twice where a group feeds transactions; their simulator must notice them."""
