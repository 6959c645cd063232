"""The Kafka server. `broker.py` makes its parts and runs its loops:

- `lifecycle/`: the log directory, registration, handover of leaderships, control of the cluster, other brokers
- `network/`: connections, dispatch of requests, limits
- `api/`: one module for each API key; `produce/` and `fetch/` have what these two need beside
- `transactions/`: markers, verification, producer ids, the log of a coordinator
- `compaction/`: what is due, plans, commits, adoption
- `observe/`: metrics and pages for operators

What API modules for administration share is in `admin.py`, `topics.py` and `resources.py` (configs).
"""
