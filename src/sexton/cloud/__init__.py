"""A cloud partition: a log whose bytes are in an object store, and whose extents are in the metastore.

    deltas    pure: what a leader's producers have sent, packed for the metastore
    extents   pure: the map of a partition, which run has this offset
    log       pure: the partition as its leader sees it, the tentative tail included
    gather    pure: what goes into the next object
    room      who waits before a batch is appended
    uploads   objects on their way: registered ids, PUTs in flight, commits in order
    blocks    pure: runs in memory, which batch has this offset
    cache     runs of objects in memory, loaded once, kept until they were served
    metered   what requests to the store cost, for metrics
    claims    leaders take partitions over, many in one transaction
    replica   what a cloud partition is to API modules
    replicas  all cloud partitions of a broker
    looking   for operators: what is there, what an object is for
    checking  for operators: whether all is there, and right
    collector objects that nothing refers to go (on the controller)

docs/cloud.md has the words and the rules C1 to C12.
"""
