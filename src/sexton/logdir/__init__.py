"""A Kafka log directory on disk: its lock, its topics' configs, and how its segments are replaced."""
