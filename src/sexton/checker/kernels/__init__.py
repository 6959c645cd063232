"""The judge at speed: the reference's anomalies over a flat history's arrays, with NumPy and Numba.

`columns` prepares a history as `checker.view` does, `keys` and `removal` as `checker.removal` does, `exts` what
operations say beside their values. The others find what the reference's module of the same name finds; what is in
`checker.tables` is in `tables`, `passes`, `folds` and `replicas`, what is in `checker.groups` in `groups` and `copies`.
One suite runs over both: their judgements must be the same, byte for byte. What brokers say of themselves is judged by
the reference, for they are asked by the clock, and not by the operation.
"""
