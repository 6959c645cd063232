"""A small Kafka client on the network port: for the command line, the replica fetchers and the simulator.

It is deterministic: time comes from the event loop, randomness from a `random.Random` that the caller passes in.
"""
