"""Fetches, on both sides: the leader that answers them, the follower that sends them, and other reads of logs."""
