"""`sexton audit`: whether the replicas of a Kafka cluster agree, key by key, and if not, why."""
