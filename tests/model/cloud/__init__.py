"""Two small models of cloud topics: the life of one object (`collector`), and the log of one partition (`commits`).

Each rule is a switch. With all of them on nothing is found in any state; with each one off, what it protects from is.
`tests/adapters/metastore/cloud` shows that the metastore keeps these rules.
"""
