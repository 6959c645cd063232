"""A Kafka log directory on disk: its lock, its topics' configurations, and how its segments are replaced."""
