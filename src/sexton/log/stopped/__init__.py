"""The log directory of a stopped broker, Kafka's or ours: its lock, its topics' configs, and how its segments are
replaced."""
