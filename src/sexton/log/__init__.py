"""One partition's log on the disk port: segments, indexes, producers, leader epochs, recovery.

`log.Log` is what the rest of the broker uses. It is made of parts, each with a state of its own: `segments` (the list,
which of it is active, which stay open), `producers`, `epochs`, `snapshots`, `health` (failure, damage, deletion),
`locks`, `group_flush`. `reading`, `checks` and `inside` are functions; `recovery` and `swapping` are one piece of work
each. Everything here runs on one event loop; what is not a coroutine returns at once and reaches no further than the
page cache. `stopped/` is about directories of brokers that do not run.
"""
