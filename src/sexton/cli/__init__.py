"""The command line: thin shells around pipelines. What they print for people, ``--json`` prints for programs."""
