"""Topics of any Kafka cluster, read as consumers read them: what is in them, and copies with other partitions."""
