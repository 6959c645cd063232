"""One partition's log on the disk port: segments, indexes, producers, leader epochs, recovery.

`log.Log` is what the rest of the broker uses. Everything here runs on one event loop; what is not a coroutine returns
at once and reaches no further than the page cache.
"""
