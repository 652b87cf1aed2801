"""Errors in the core that `insync simulate` notices, by the rooms and things that they are in."""
