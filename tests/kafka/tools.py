from sexton.clusters.kafka_tools import DUMP_FAULTS, dump_log, run_tool, tool_command

__all__ = ["DUMP_FAULTS", "dump_log", "run_tool", "tool_command"]
