-- It called itself version 1, as all five of this folder did.
-- The schema as of commit 883be76: brokers, topics, partitions, configs.

CREATE TABLE sexton_cluster (
    id BIGINT NOT NULL, cluster_id CHAR(32) NOT NULL, schema_version BIGINT NOT NULL,
    revision BIGINT NOT NULL, forgotten_revision BIGINT NOT NULL, next_producer_id BIGINT NOT NULL,
    controller_id BIGINT NOT NULL, controller_epoch BIGINT NOT NULL,
    controller_term BIGINT NOT NULL, controller_revision BIGINT NOT NULL, PRIMARY KEY (id)
);
INSERT INTO sexton_cluster VALUES (1, 'c1000000000000000000000000000000', 1, 7, 0, 1000, 1, 3, 2, 4);

CREATE TABLE sexton_brokers (
    broker_id BIGINT NOT NULL, epoch BIGINT NOT NULL, host TEXT NOT NULL, port BIGINT NOT NULL,
    rack TEXT, data_id CHAR(32) NOT NULL, lease_ms BIGINT NOT NULL, renewals_count BIGINT NOT NULL,
    status TEXT NOT NULL, revision BIGINT NOT NULL, PRIMARY KEY (broker_id)
);
CREATE INDEX ix_sexton_brokers_revision ON sexton_brokers (revision);
INSERT INTO sexton_brokers VALUES (1, 3, '127.0.0.1', 9092, NULL, 'b1000000000000000000000000000000', 6000, 12, 'active', 3);

CREATE TABLE sexton_topics (
    topic_id CHAR(32) NOT NULL, name TEXT NOT NULL, is_internal BOOLEAN NOT NULL,
    revision BIGINT NOT NULL, PRIMARY KEY (topic_id), UNIQUE (name)
);
CREATE INDEX ix_sexton_topics_revision ON sexton_topics (revision);
INSERT INTO sexton_topics VALUES ('a1000000000000000000000000000000', 'orders', false, 5);

CREATE TABLE sexton_partitions (
    topic_id CHAR(32) NOT NULL, partition BIGINT NOT NULL, replicas TEXT NOT NULL,
    isr TEXT NOT NULL, leader BIGINT NOT NULL, leader_epoch BIGINT NOT NULL,
    partition_epoch BIGINT NOT NULL, adding TEXT NOT NULL, removing TEXT NOT NULL,
    incarnations TEXT NOT NULL, revision BIGINT NOT NULL, PRIMARY KEY (topic_id, partition)
);
CREATE INDEX ix_sexton_partitions_revision ON sexton_partitions (revision);
INSERT INTO sexton_partitions VALUES ('a1000000000000000000000000000000', 0, '[1]', '[1]', 1, 4, 6, '[]', '[]', '{}', 6);

CREATE TABLE sexton_configs (
    scope TEXT NOT NULL, name TEXT NOT NULL, settings TEXT NOT NULL, revision BIGINT NOT NULL,
    PRIMARY KEY (scope, name)
);
CREATE INDEX ix_sexton_configs_revision ON sexton_configs (revision);
INSERT INTO sexton_configs VALUES ('topic', 'orders', '{"cleanup.policy":"compact"}', 5);

CREATE TABLE sexton_deleted_topics (
    topic_id CHAR(32) NOT NULL, revision BIGINT NOT NULL, PRIMARY KEY (topic_id)
);
CREATE INDEX ix_sexton_deleted_topics_revision ON sexton_deleted_topics (revision);
INSERT INTO sexton_deleted_topics VALUES ('a2000000000000000000000000000000', 7);
