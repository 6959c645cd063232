"""One broker's own configs: read from a file in Kafka's syntax or given as texts by name.

Any mistake stops the broker before it starts, with a message that says what to write instead: a broker that runs with
half of its intended configs is worse than one that does not run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sexton.settings.broker import RACK_AWARE_SELECTOR, BrokerSettings
from sexton.settings.checks import broker_setting, check_topic_defaults
from sexton.settings.layers import SettingsView, broker_values
from sexton.settings.schema import REQUIRED, BadSettingError, settings_of

LOOPBACK = "127.0.0.1"
_ANY_ADDRESS = ("0.0.0.0", "::", "*")


class Endpoint(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, kw_only=True)
class BrokerConfig(BrokerSettings):
    """All configs as attributes, named after them: `config.socket_request_max_bytes`."""

    static: Mapping[str, str] = field(default_factory=dict)
    """The texts as they were given, by name. Dynamic configs override them."""

    @staticmethod
    def of(settings: Mapping[str, str | int | bool], place: str = "") -> BrokerConfig:
        """Parses texts by name (numbers and booleans are accepted too). Error messages name `place`."""
        texts = {name: _text_of(value) for name, value in settings.items()}
        try:
            config = BrokerConfig(**_parse(texts), static=texts)
            check_topic_defaults(texts)
            config._check()
        except BadSettingError as error:
            raise BadSettingError(error.what, place) from error
        return config

    def effective(self, view: SettingsView) -> BrokerConfig:
        """Applies the dynamic configs. Only configs that may change at run time differ from these."""
        return BrokerConfig(**_parse(broker_values(view, self.static, self.node_id)), static=self.static)

    @property
    def log_dir(self) -> str:
        return self.log_dirs[0]

    @property
    def listener(self) -> Endpoint:
        """Address to listen on. Port 0 means any free port."""
        return _endpoint("listeners", self.listeners)

    @property
    def advertised(self) -> Endpoint:
        """Address that clients and other brokers connect to. Port 0 stands for the port that the broker got when it
        began to listen."""
        return (
            _endpoint("advertised.listeners", self.advertised_listeners) if self.advertised_listeners else self.listener
        )

    @property
    def admin_endpoint(self) -> Endpoint | None:
        if not self.admin_listener:
            return None
        return _endpoint("admin.listener", (self.admin_listener,), "http")

    @property
    def reads_from_near_replicas(self) -> bool:
        return self.replica_selector_class == RACK_AWARE_SELECTOR

    def _check(self) -> None:
        _ = self.listener, self.admin_endpoint  # raises if one of them is invalid
        if len(self.log_dirs) != 1:
            raise BadSettingError("log.dirs must name exactly one folder: a bigger machine runs more brokers")
        if self.advertised.host in _ANY_ADDRESS:
            raise BadSettingError(
                f"{self.advertised.host} is no address that others can connect to: set advertised.listeners"
            )
        if self.broker_lease_renew_ms * 2 > self.broker_lease_ms:
            raise BadSettingError(
                "broker.lease.renew.ms must be at most half of broker.lease.ms, so that one may be lost"
            )
        _check_order("group.min.session.timeout.ms", "group.max.session.timeout.ms", self)
        for kind in ("session.timeout", "heartbeat.interval"):
            _check_order(f"group.consumer.min.{kind}.ms", f"group.consumer.{kind}.ms", self)
            _check_order(f"group.consumer.{kind}.ms", f"group.consumer.max.{kind}.ms", self)


def _check_order(lower: str, upper: str, config: BrokerConfig) -> None:
    low, high = (getattr(config, name.replace(".", "_")) for name in (lower, upper))
    if low > high:
        raise BadSettingError(f"{lower} ({low}) must not be above {upper} ({high})")


def _text_of(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parse(texts: Mapping[str, str]) -> dict[str, Any]:
    """Returns values by attribute name. Configs that are only defaults of topics are checked, but have no attribute."""
    declared = settings_of(BrokerSettings)
    missing = [name for name, setting in declared.items() if setting.default is REQUIRED and name not in texts]
    if missing:
        raise BadSettingError(f"{missing[0]} must be given")
    values = {name: broker_setting(name).parse(text) for name, text in texts.items()}
    return {name.replace(".", "_"): value for name, value in values.items() if name in declared}


_LISTENER = re.compile(
    r"(?P<scheme>[A-Za-z0-9_]+)://(\[(?P<six>[0-9a-fA-F:.]*)\]|(?P<host>[^:/\[\]]*)):(?P<port>[0-9]+)"
)


def _endpoint(name: str, listeners: tuple[str, ...], scheme: str = "PLAINTEXT") -> Endpoint:
    if len(listeners) != 1:
        raise BadSettingError(f"{name} must name exactly one listener, {scheme}://host:port")
    match = _LISTENER.fullmatch(listeners[0])
    if match is None:
        raise BadSettingError(f"Invalid value {listeners[0]} for configuration {name}: expected {scheme}://host:port")
    if match["scheme"].upper() != scheme.upper():
        raise BadSettingError(
            f"Invalid value {listeners[0]} for configuration {name}: only {scheme} is offered; put a proxy in front "
            "for encryption or authentication"
        )
    port = int(match["port"])
    if port > 65_535:
        raise BadSettingError(f"Invalid value {listeners[0]} for configuration {name}: there is no port {port}")
    return Endpoint(match["six"] or match["host"] or LOOPBACK, port)
