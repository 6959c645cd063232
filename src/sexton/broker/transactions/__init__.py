"""A broker's part in transactions: the coordinator's log, markers, verification, producer ids."""
