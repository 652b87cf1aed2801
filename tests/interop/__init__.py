"""insync's files and batches beside other programs of Kafka's formats."""
