"""What executes plans: Spark, or the reference compactor without it. `compactor.engine` has their interface."""
