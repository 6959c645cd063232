"""Transaction configs, under Kafka's names and with Kafka's defaults."""

from __future__ import annotations

from dataclasses import dataclass

from sexton.settings.broker import BrokerSettings


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    timeout_ms_max: int = 900_000
    id_expiration_ms: int = 7 * 24 * 60 * 60_000
    id_expiration_check_ms: int = 60 * 60_000
    commit_timeout_ms: int = 5_000
    """How long a response waits until the state that it depends on is committed."""
    concurrent_wait_ms: int = 1_000
    """How long a request waits for the markers of the previous transaction before it gets CONCURRENT_TRANSACTIONS: most
    are written within milliseconds, and clients would retry only after 20 to 100."""

    @classmethod
    def of(cls, config: BrokerSettings) -> TransactionSettings:
        return cls(
            timeout_ms_max=config.transaction_max_timeout_ms,
            id_expiration_ms=config.transactional_id_expiration_ms,
            id_expiration_check_ms=config.transaction_remove_expired_transaction_cleanup_interval_ms,
        )
