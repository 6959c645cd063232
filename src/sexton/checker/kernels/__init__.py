"""The judge at speed: the reference's anomalies over a flat history's arrays, with NumPy and Numba.

`columns` prepares a history as `checker.view` does. Each other module is the twin of the reference's module of the same
name, and one suite runs over both: their judgements must be the same, byte for byte. What few histories have (groups,
copiers, tables of compacted logs) is taken from the reference, over the rows of the logs concerned (`part`).
"""
