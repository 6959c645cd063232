"""Coordinated compaction: how far each replica has compacted, and what may be removed because all have.

Pure: what a replica knows is a value, what it hears gives the next value (`replica.py`); what a leader knows of its
followers is in `leader.py`. Making values durable before they are reported or acted on is the caller's duty (rule 7),
and `checkpoint.py` is their form on disk.
"""
