"""How a broker starts, registers, takes its part in the cluster, and stops."""
