"""Transactions: the state machine of one partition of `__transaction_state`, and the markers on their way."""
