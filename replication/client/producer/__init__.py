"""The producer: batches on their way from `send` to their outcome, and transactions."""

from .producer import Producer, unprepared

__all__ = ["Producer", "unprepared"]
