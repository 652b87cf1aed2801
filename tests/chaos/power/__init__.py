"""Power cuts: machines on devices that forget all that was not flushed, and rounds of load, cut and start."""
