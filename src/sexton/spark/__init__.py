"""PySpark jobs: passes over bulk data. They run unchanged on ``local[*]`` and on a cluster."""
