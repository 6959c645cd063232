"""The broker's admin HTTP endpoint (`admin.listener`), for operators and their tools.

traffic    counters of the hot path, by API
metrics    all Prometheus metrics
pages      routes of the endpoint
"""
