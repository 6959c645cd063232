"""The page of a run: what was found, with its evidence, and what clients saw over time."""
