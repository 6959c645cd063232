"""The compaction's loops over records: finding each key's newest record, and copying what survives."""
