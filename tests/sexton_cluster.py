"""Real Sexton brokers: one process each, as people run them. See `sexton.clusters.brokers`."""

from sexton.clusters.brokers import ENVIRONMENT, SextonCluster

__all__ = ["ENVIRONMENT", "SextonCluster"]
