"""An explicit-state model of one partition's in-sync set: how it is changed, by whom, and who hears of it when.

The model of compaction (the package above) changes in-sync sets at once. Here a change is decided by a leader, sent,
carried out or refused by the metastore at any later time, answered or not, and asked for again; leaders see the row
when they poll; brokers lose power, come back as other processes, with older disks or none; replicas are wiped, removed
and added again between two looks. Nothing is assumed about leases: a leader that was deposed goes on until it sees it.

What decides is the real code: `replication/leadership.py`, `metadata/isr.py`, `elections.py`, `reassignment.py`.

    rules.py     the rules as switches
    state.py     the state of everything, and its canonical form
    real.py      the bridge to the real code, with its answers remembered
    leaders.py   records are written and copied; in-sync sets decided, asked for, seen
    cluster.py   requests that arrive or do not; elections, reassignment, processes, disks
    machine.py   one step: an action applied and checked
    rest.py      the return to quiescence
    arenas.py    which part of the world an exploration looks at, and where nothing may be found
    traps.py     for every rule, where it is missed
"""
