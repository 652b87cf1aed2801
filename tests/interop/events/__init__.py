"""What clients of Kafka tell their programs: the same jobs at our nodes and at a real Kafka."""
