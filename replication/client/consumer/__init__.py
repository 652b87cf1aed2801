"""The consumer: its fetches, its group, and the records that it hands out."""

from .consumer import Consumer, ConsumerRecord, FetchedBatches, put_back, put_back_batches

__all__ = ["Consumer", "ConsumerRecord", "FetchedBatches", "put_back", "put_back_batches"]
