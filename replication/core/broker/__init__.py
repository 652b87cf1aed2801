"""What a node decides: the machine that `node` drives with trio and `simulation` with models."""
