"""An explicit-state model of one compacted partition on three brokers, and what explores it.

It decides with the real pure code wherever there is some: `watermarks/` for progress, minimum and fence,
`replication/history.py` and `leadership.py` for truncation and the high watermark, `compaction/reference.py` for what a
compaction leaves of a log. Around them it puts what a cluster can do to a partition, at any moment and in any order.
Each rule of docs/rules.md is a switch (`switches.py`), so that a test can remove one and watch it being missed.

    logs.py         records and logs as small integers and tuples; what a consumer sees of them
    real.py         the bridge to the real code, with its answers remembered
    state.py        the state of everything, and its canonical form
    coordination.py reports and tellings
    replication.py  clients write, followers copy
    cluster.py      what befalls brokers: elections, crashes, disks, membership, time
    producers.py    what a replica knows of the transactional producer
    compaction.py   compactions, their commit, their adoption
    deferral.py     which records of the clean section a pass may leave where they are
    consumers.py    slow readers, and fetches that are torn in two
    checks.py       what must hold in every state and after every step
    rest.py         the return to quiescence
    machine.py      one step: an action applied and checked
    explore.py      all states up to a bound, breadth first
    walk.py         random walks, and the shrinking of what they find
    arenas.py       which part of the world an exploration looks at
    traps.py        for every rule, where it is missed
                    (compact_once.py, deferral_traps.py: those of adoption, and of deferral)
    explorations.py where nothing may be found
    insync/         a second model: how in-sync sets are changed, which happens at once here
"""
