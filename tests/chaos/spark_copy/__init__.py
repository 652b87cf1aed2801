"""A streaming copy from topic to topic under kills: `python -m tests.chaos.spark_copy --times 20 --json`."""
