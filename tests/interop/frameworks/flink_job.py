"""A Flink job in a MiniCluster: numbers, at a steady rate, into a topic by the exactly-once sink.

It writes checkpoints into a folder; started again with one of them, as a supervisor would, it goes on from there.
"""

from __future__ import annotations

from typing import Any

from tests.interop.frameworks.jvm import java_list, java_map, say, start, task

CHECKPOINT_MS = 1_000
PARALLELISM = 2


def main() -> None:
    asked = task()
    jvm = start(asked["classpath"])
    settings = {
        "execution.checkpointing.interval": f"{CHECKPOINT_MS} ms",
        "execution.checkpointing.timeout": "30 s",
        "execution.checkpointing.tolerable-failed-checkpoints": 1_000,
        "execution.checkpointing.storage": "filesystem",
        "execution.checkpointing.dir": f"file://{asked['checkpoints']}",
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        "pipeline.operator-chaining.enabled": str(asked["is_chained"]).lower(),
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": 1_000,
        "restart-strategy.fixed-delay.delay": "200 ms",
    }
    if asked["recover_from"]:
        settings["execution.state-recovery.path"] = f"file://{asked['recover_from']}"
    configuration = jvm.org.apache.flink.configuration.Configuration.fromMap(java_map(jvm, settings))
    environments = jvm.org.apache.flink.streaming.api.environment.StreamExecutionEnvironment
    environment = environments.createLocalEnvironment(PARALLELISM, configuration)
    numbers = environment.fromSource(
        source(jvm, environment.getConfig(), asked["count"], asked["rate_per_s"]),
        jvm.org.apache.flink.api.common.eventtime.WatermarkStrategy.noWatermarks(),
        "numbers",
    )
    numbers.uid("numbers").sinkTo(sink(jvm, asked)).uid("sink")
    job = environment.executeAsync("numbers")
    say(f"pid {jvm.java.lang.ProcessHandle.current().pid()}")
    say("running")
    job.getJobExecutionResult().get()
    say("finished")


def source(jvm: Any, execution_config: Any, count: int, rate_per_s: int) -> Any:
    kind = jvm.org.apache.flink.api.common.typeinfo.Types.STRING
    datagen = jvm.org.apache.flink.connector.datagen
    elements = java_list(jvm, map(str, range(count)))
    limits = jvm.org.apache.flink.api.connector.source.util.ratelimit.RateLimiterStrategy
    return datagen.source.DataGeneratorSource(
        datagen.functions.FromElementsGeneratorFunction(kind, execution_config, elements),
        count,
        limits.perSecond(float(rate_per_s)),
        kind,
    )


def sink(jvm: Any, asked: dict[str, Any]) -> Any:
    sinks = jvm.org.apache.flink.connector.kafka.sink
    strings = jvm.org.apache.flink.api.common.serialization.SimpleStringSchema()
    schema = sinks.KafkaRecordSerializationSchema.builder().setTopic(asked["topic"])
    return (
        sinks.KafkaSink.builder()
        .setBootstrapServers(asked["bootstrap"])
        .setRecordSerializer(schema.setValueSerializationSchema(strings).build())
        .setDeliveryGuarantee(jvm.org.apache.flink.connector.base.DeliveryGuarantee.EXACTLY_ONCE)
        .setTransactionalIdPrefix(asked["topic"])
        .setTransactionNamingStrategy(sinks.TransactionNamingStrategy.valueOf(asked["naming"]))
        .setProperty("transaction.timeout.ms", str(asked["transaction_timeout_ms"]))
        .setProperty("linger.ms", "0")
        .setProperty("batch.size", "1")
        .setProperty("request.timeout.ms", "5000")
        .build()
    )


if __name__ == "__main__":
    main()
