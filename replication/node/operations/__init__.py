"""The reports of a running node: counters, metrics, health, changes; and quotas, which slow clients."""
