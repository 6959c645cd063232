from sexton.clusters.processes import HOST, Port, ServerProcess

__all__ = ["HOST", "Port", "ServerProcess"]
