"""The driver of a node's coordinators: their requests, their records, their settings."""
