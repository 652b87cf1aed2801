"""The node's side of the metadata store: its registration, its readings, its writes."""
