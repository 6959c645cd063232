"""Histories from bytes to flat arrays, compiled by Numba: no Python object per line or token.

A kernel reads what is spelled as we (JSON Lines) or Jepsen (EDN) spell it, and leaves every other line to the plain
reader, `history.lines` or `history.edn`: a nemesis' operations, escapes in strings, tagged elements, and whatever is
wrong. So a kernel never says what is wrong, and need not know all of a format; but what it takes, it must take as the
plain reader does. One suite runs over both.

The last byte of `data` is a newline. No kernel goes past a byte before it has compared it with one that is not a
newline, so none leaves its line, or `data`.
"""
