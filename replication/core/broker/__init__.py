"""The decisions of a node: the machine that `node` drives with trio and `simulation` with models."""
