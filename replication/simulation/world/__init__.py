"""The world of a run: virtual time, processes, disks, network and metadata store as models."""
