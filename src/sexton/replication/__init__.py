"""One partition's replicas: who leads, who is in sync, what is committed, and how followers copy the log."""
