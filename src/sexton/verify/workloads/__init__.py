"""What clients are asked to do. Each workload is a pure state machine: randomness is an argument, no client is
known."""
