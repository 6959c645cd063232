"""What each client is made to do. These modules run in the client's own virtual environment, in one process per
client and version: they import the standard library, the client, its driver and each other, nothing else."""
