"""Loops over records, compiled by Numba: they take and return arrays and numbers.

Each kernel has a plain Python twin (``records.batch``, ``records.varint``, ``records.keyhash``), and one test suite
runs over both. Compiled code is kept in the user's cache directory (or in ``NUMBA_CACHE_DIR``, or in a private
temporary one), so that only the first start after an installation or an update compiles, for some ten seconds.
"""
