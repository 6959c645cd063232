"""Connections of clients and other brokers: frames, dispatch of requests, limits."""
