"""The worker that compacts: it leases what is due, runs it on Spark, and hands the results to the brokers."""
