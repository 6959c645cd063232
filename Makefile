# Every target sets up what it needs (scripts/setup). `make help` lists them.
SHELL := /bin/bash
BIN := .venv/bin
.DEFAULT_GOAL := help

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: run
run: ## A cluster of three brokers on this machine, in ./sexton-data, until Ctrl-C
	@scripts/setup run
	@exec $(BIN)/sexton up

.PHONY: demo
demo: ## Compaction at a glance: make a sample partition, query it, compact it, show before and after
	@scripts/setup run
	@$(BIN)/sexton demo

.PHONY: test
test: ## Linters, unit tests, simulator, real brokers, Spark, real Apache Kafka; what CI runs
	@scripts/setup test
	@scripts/test

.PHONY: test-all
test-all: ## Every target that tests something, one after another, with one table at the end (takes hours)
	@scripts/setup test
	@scripts/test-all

.PHONY: clients
clients: ## Every Kafka client we know of, in several versions, against real brokers; transactions with each (takes long)
	@scripts/setup clients
	@$(BIN)/python -m pytest tests/interop tests/transactions

.PHONY: clients-cloud
clients-cloud: ## The same on cloud topics: default.storage.mode=cloud, on a real S3 (takes long)
	@scripts/setup clients
	@$(BIN)/python -m pytest tests/interop tests/transactions --storage cloud

.PHONY: reproduce
reproduce: ## Four corruptions by compaction, on real Apache Kafka and on Sexton with and without coordination; a page
	@scripts/setup test
	@$(BIN)/sexton reproduce --all --report build/reproduce.html

.PHONY: simulate
simulate: ## Whole clusters under virtual time: 300 seeds, and rules broken on purpose that must be found
	@scripts/setup test
	@$(BIN)/sexton simulate --seeds 200
	@$(BIN)/sexton simulate --seeds 50 --profile cloud
	@$(BIN)/sexton simulate --seeds 50 --profile leveled
	@$(BIN)/python -m pytest -m soak tests/simulate

.PHONY: simulate-cloud
simulate-cloud: ## 1,000 seeds of cloud topics and 1,000 with compactors, and each of their rules broken on purpose (takes hours)
	@scripts/setup test
	@$(BIN)/sexton simulate --seeds 1000 --profile cloud
	@$(BIN)/sexton simulate --seeds 1000 --profile leveled
	@$(BIN)/python -m pytest -m soak tests/simulate/test_run.py -k "C1 or C2 or C3 or C4 or C5 or C6 or C7 or C8 or C9 or cloud or move"

.PHONY: judge
judge: ## The judge of histories on 500 correct ones, and on 50 with each anomaly planted in a known place
	@scripts/setup test
	@$(BIN)/python -m pytest -m soak tests/checker

VERIFY_TIME ?= 60

.PHONY: verify-suite
verify-suite: ## Every workload under every fault, VERIFY_TIME seconds of faults each (takes hours); goes on where it was
	@scripts/setup test
	@$(BIN)/sexton verify suite --time $(VERIFY_TIME) --dir build/verify-suite

.PHONY: verify-selftest
verify-selftest: ## Is the judge any good: every anomaly planted, every lie told, systems that are known to be bad (an hour)
	@scripts/setup clients
	@$(BIN)/sexton verify selftest --seeds 50 --systems --dir build/verify-selftest-$$(date +%Y%m%d-%H%M%S)

.PHONY: verify-soak
verify-soak: ## What is too long for `make test`: a broker away until it is forgotten, disks that fail, the same on Kafka, franz-go
	@scripts/setup clients
	@$(BIN)/python -m pytest -m soak tests/verify

.PHONY: explore
explore: ## Coordinated compaction as a model: explored exhaustively to a bound, and by random walks beyond it
	@scripts/setup test
	@$(BIN)/python -m pytest tests/model -m "" --soak

.PHONY: test-fast
test-fast: ## What needs neither a server nor real Kafka: for the inner loop
	@scripts/setup test
	@$(BIN)/python -m pytest -q -m "not kafka and not spark and not soak"

.PHONY: lint
lint: ## ruff, mypy --strict, import-linter
	@scripts/setup test
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

.PHONY: bench
bench: ## Compaction speed beside Kafka's own cleaner, on copies of the same segments (takes long)
	@scripts/setup test
	@$(BIN)/python -m benchmarks.compaction

.PHONY: bench-broker
bench-broker: ## Brokers beside Apache Kafka: throughput, latency, CPU, memory (takes long)
	@scripts/setup test
	@$(BIN)/python -m benchmarks.broker

.PHONY: bench-cloud
bench-cloud: ## Cloud topics on a folder, on S3 and on S3 as slow as the real one, beside local ones (takes long)
	@scripts/setup test
	@$(BIN)/python -m benchmarks.cloud
	@$(BIN)/python -m benchmarks.cloud_compaction

.PHONY: bench-transactions
bench-transactions: ## Transactions beside Apache Kafka, with one broker and with three (takes long)
	@scripts/setup test
	@$(BIN)/python -m benchmarks.transactions

.PHONY: bench-check
bench-check: ## The judge of histories: 100 k and a million operations of three workloads, beside the plain reference
	@scripts/setup test
	@$(BIN)/python -m benchmarks.check

.PHONY: bench-verify
bench-verify: ## How many operations a second `sexton verify` asks of a healthy cluster, led and sharded, and who works for it
	@scripts/setup test
	@$(BIN)/python -m benchmarks.verify_load

.PHONY: bench-live
bench-live: ## Compaction while a cluster is used, beside Apache Kafka: what clients notice, how soon it is done (takes long)
	@scripts/setup test
	@$(BIN)/python -m benchmarks.live_compaction

.PHONY: bench-audit
bench-audit: ## `sexton audit` of 3 x 2 GB beside kafka-dump-log, of 50 million keys, of 1,000 partitions (7 GB of disk, takes long)
	@scripts/setup test
	@$(BIN)/python -m benchmarks.audit

.PHONY: soak
soak: ## kill -9 of `sexton compact` at random moments, 100 times; 4,000 random logs; what takes too long with real Kafka
	@scripts/setup test
	@$(BIN)/python -m pytest tests/kafka/test_crash.py --crashes 100
	@$(BIN)/python -m pytest tests/kafka tests/audit tests/topics -m soak
	@SEXTON_SEEDS=4000 $(BIN)/python -m pytest tests/spark/test_compact_matches_reference.py

AUDITS ?= 20
AUDIT_WRITES ?= 5000
AUDIT_SECONDS ?= 60

.PHONY: soak-audit
soak-audit: ## AUDITS audits of a Kafka that takes AUDIT_WRITES writes a second for AUDIT_SECONDS, compacts and moves its leaders
	@scripts/setup test
	@$(BIN)/python -m pytest tests/audit/live/test_under_load.py -m soak -s \
		--audits $(AUDITS) --writes $(AUDIT_WRITES) --seconds $(AUDIT_SECONDS)

.PHONY: chaos
chaos: ## Five minutes of kill -9, SIGSTOP and metastore outages against real brokers; nothing acknowledged is lost
	@scripts/setup test
	@$(BIN)/python -m pytest tests/interop/test_chaos.py -s --chaos-seconds 300

.PHONY: soak-live
soak-live: ## A cluster that compacts itself: 100 kills of brokers and compactors, ten minutes without a broker, five of updates
	@scripts/setup test
	@$(BIN)/python -m pytest tests/compactor/test_kills.py tests/compactor/test_live.py \
		tests/compactor/test_long_runs.py tests/compactor/cloud/test_long_runs.py -m "" -s --soak

.PHONY: soak-cloud
soak-cloud: ## Every failure of cloud topics on real brokers and a real S3, with SQLite and PostgreSQL; everything at once for an hour each
	@scripts/setup test
	@$(BIN)/python -m pytest tests/cloud/failures -m "" --soak

.PHONY: storm
storm: ## Fifty transactional producers for two minutes while coordinators are killed and paused: whole or not at all
	@scripts/setup test
	@$(BIN)/python -m pytest tests/transactions/test_kills.py -s --soak

.PHONY: fuzz-groups
fuzz-groups: ## A million odd requests to a group coordinator: no turn above 50 ms, nothing loaded again, nobody else hurt
	@scripts/setup test
	@$(BIN)/python -m pytest tests/coordinators/groups/test_fuzz.py -s --soak

.PHONY: lock
lock: ## Resolve requirements.txt and requirements-dev.txt again
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--custom-compile-command "make lock" --extra all pyproject.toml -o requirements.txt
	@$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--custom-compile-command "make lock" --extra dev pyproject.toml -o requirements-dev.txt
