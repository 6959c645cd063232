"""Real brokers against everything that can be wrong around them: clients, disks, limits, the metastore, each other."""
