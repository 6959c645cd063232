"""Leveling and compaction of cloud topics."""
