"""The driver of the simulated nodes: it carries out what the core's machines ask for, over models."""
