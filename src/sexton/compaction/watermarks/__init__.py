"""Coordinated compaction: how far each replica has compacted, and what may be removed because all have.

Pure: a replica's knowledge is a value, and each thing that it receives gives the next value (`replica.py`); a leader's
knowledge of its followers is in `leader.py`. The caller makes values durable before they are reported or acted on (rule
7); `checkpoint.py` is their format on disk.
"""
