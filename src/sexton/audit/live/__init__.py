"""The replicas of a running cluster, read one by one from the brokers that hold them, through the ordinary protocol."""
