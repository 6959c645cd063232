"""Kafka's record batch and segment formats: decodes bytes into arrays, and encodes them."""
