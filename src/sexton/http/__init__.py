"""What our processes tell of themselves over HTTP.

server       as much of HTTP/1.1 as that needs
exposition   metrics as Prometheus reads them
"""
