"""Interfaces for everything that a broker does to the outside world.

Real adapters (`sexton.adapters`) run in production, simulated ones (`sexton.simulate`) run whole clusters in one
process under virtual time. Code above the ports therefore follows three rules: time comes from a `Clock` or the running
event loop, randomness from a `random.Random` that was passed in, and concurrency is asyncio alone (tasks, futures,
sleeps; no threads, no iteration over sets whose order could matter).
"""
