"""Loops over records, compiled by Numba: arrays and numbers in, arrays and numbers out.

Each kernel has a plain Python twin (``records.batch``, ``records.varint``, ``records.keyhash``), and one suite runs
over both. Compiled code is kept in Numba's cache beside the sources (or in ``NUMBA_CACHE_DIR``), so that only the
first start after an installation compiles.
"""
