"""The pages: each a function from what is known of the cluster to markup, and what there is to press on it."""
