"""Kafka's record batch and segment format: bytes in, arrays out, and back."""
