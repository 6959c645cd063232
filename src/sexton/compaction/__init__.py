"""Compaction: what may be removed and what must be kept, the reference compactor, and when a log is due."""
