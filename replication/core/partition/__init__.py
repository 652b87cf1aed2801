"""One replica of one partition: leader and follower, its log as it knows it, the ISR, epochs and producers."""
