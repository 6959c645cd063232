"""What a broker tells of itself to people and their tools, over HTTP (`admin.listener`).

traffic    what the hot path counts: plain numbers, by API
metrics    all that Prometheus is told
pages      which address gives what
"""
