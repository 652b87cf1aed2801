"""Plans for a store that was lost or put back, and for folders of Kafka's: they belong to no running node."""
