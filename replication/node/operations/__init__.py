"""What a node tells of itself while it runs: counters, metrics, health, changes; and quotas, which slow clients."""
