"""The cluster as clients see it: connections, leaders, coordinators, and questions for each of them."""
