"""The operations of `sexton.ports.cloud`, as functions of a `Session`: the same for both databases and the simulator.

    rows         rows and keys to and from the tables; which rows are locked, and in which order
    objects      registering, releasing, expiring; references; rounds, pins and collecting
    claiming     a leader takes a partition over
    committing   L0: what leaders commit, and what an old commit has become
    replacing    L1: leveling and compaction
    reading      extents by offset and by time
    trimming     the start of a log, and the end of a topic
    moving       a local partition becomes a cloud partition
    checks       what must hold in every state and over every step

**Locks.** SQLite has one writer (`BEGIN IMMEDIATE`). On PostgreSQL each operation locks what it decides by, always in
this order: rows of `partitions` by key, rows of `objects` by id, the row of the collector, and the revision last, if it
takes one (then for as long as the COMMIT takes). Two operations that meet therefore wait for each other, and never in a
circle. L0 commits take no revision: they happen all the time, and the leader knows of its own.

Rules are Python inside the transaction, as in `operations`, and statements are few whatever the number of partitions: a
commit that asks one question a partition is slow where it matters (632 partitions an object, elsewhere).
"""
