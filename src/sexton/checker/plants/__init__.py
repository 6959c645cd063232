"""Anomalies that are planted into correct histories (`checker.sabotage`)."""
