"""What a setting is: Kafka's name, a type, a default, the valid values, and a text that explains it.

Settings are declared once, as the fields of a dataclass that holds their parsed values (`TopicConfig` in `topic.py`,
`BrokerSettings` in `broker.py`): the attribute `retention_ms` is the setting `retention.ms`. Everything else is derived
from the declaration: parsing, ranges, the DescribeConfigs response, the reference page.

Values are parsed as Kafka does: surrounding blanks are ignored, numbers must fit their type, true and false are not
case-sensitive. Where Sexton allows less than Kafka, the error says so (`checks.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum, IntEnum, StrEnum
from functools import cache
from typing import Any, Final

from sexton.errors import SextonError

MINUTE_MS = 60 * 1000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


class BadSettingError(SextonError):
    """A setting has a value that Kafka would refuse too, or that Sexton does not support."""

    exit_code = 64


class Kind(IntEnum):
    """Types of settings, numbered as in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7


class Update(StrEnum):
    """When a changed value takes effect."""

    READ_ONLY = "at the next start"
    CLUSTER_WIDE = "at once"


class _Required(Enum):
    REQUIRED = "required"


REQUIRED: Final = _Required.REQUIRED
"""The default of a setting that must be given."""

_BITS = {Kind.SHORT: 16, Kind.INT: 32, Kind.LONG: 64}
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+")


@dataclass(frozen=True, slots=True)
class Synonym:
    """The name under which a broker sets a topic config's default. One unit of it is `factor` units of the topic's."""

    name: str
    factor: int = 1

    def convert(self, text: str) -> str:
        """Converts a value to the topic config's unit. Negative values mean "no limit" in every unit."""
        if self.factor == 1 or not _WHOLE_NUMBER.fullmatch(text.strip()):
            return text
        value = int(text)
        return str(value * self.factor) if value >= 0 else "-1"


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    kind: Kind
    default: Any
    doc: str
    low: float | None = None
    high: float | None = None
    besides: int | None = None
    """One number outside of that range that is valid too."""
    choices: tuple[str, ...] = ()
    check: Callable[[str], str] | None = None
    """Returns what is wrong with the text; empty if nothing is."""
    synonyms: tuple[Synonym, ...] = ()
    """Broker settings that set this topic config's default, in order of precedence."""
    update: Update = Update.READ_ONLY
    is_sensitive: bool = False
    is_broker_only: bool = False
    """Declared with the topics' configs, but cannot be set on a topic."""
    as_set: bool = False
    """The order of the list does not matter: it is parsed into a frozenset."""

    def parse(self, text: str) -> Any:
        """The parsed value. Raises BadSettingError, with the setting's name, if it is invalid."""
        try:
            value = _READERS[self.kind](self, text.strip())
            if problem := self.check(text.strip()) if self.check else "":
                raise ValueError(problem)
        except ValueError as error:
            raise BadSettingError(f"Invalid value {text} for configuration {self.name}: {error}") from error
        return frozenset(value) if self.as_set else value

    def text_of(self, value: Any) -> str | None:
        """The value as Kafka writes it; None for a setting that is not set."""
        if value is None or value is REQUIRED:
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple | frozenset):
            return ",".join(sorted(value) if isinstance(value, frozenset) else value)
        return str(value)

    def normalize(self, text: str) -> str:
        """The text as Kafka reports it after parsing it."""
        if self.kind is Kind.LIST:
            return ",".join(_read_list(self, text.strip()))
        return str(self.text_of(self.parse(text)))

    @property
    def valid_values(self) -> str:
        """For people: `[0,...]`, `one of …`, or empty if every value of the type is valid."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.low is None and self.high is None:
            return ""
        also = "" if self.besides is None else f" or {self.besides}"
        return f"[{'' if self.low is None else self.low},...{'' if self.high is None else f',{self.high}'}]{also}"


def _read_boolean(setting: Setting, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("expected true or false")
    return text.lower() == "true"


def _read_whole_number(setting: Setting, text: str) -> int:
    bound = 1 << (_BITS[setting.kind] - 1)
    if not _WHOLE_NUMBER.fullmatch(text) or not -bound <= int(text) < bound:
        raise ValueError(f"not a number of type {setting.kind.name}")
    return int(_in_range(setting, int(text)))


def _read_double(setting: Setting, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError("not a number of type DOUBLE") from None
    return _in_range(setting, value)


def _read_string(setting: Setting, text: str) -> str:
    if setting.choices and text not in setting.choices:
        raise ValueError("it must be one of: " + ", ".join(setting.choices))
    return text


def _read_list(setting: Setting, text: str) -> tuple[str, ...]:
    parts = tuple(dict.fromkeys(part.strip() for part in text.split(","))) if text else ()
    if setting.choices and not set(parts) <= set(setting.choices):
        raise ValueError("each part must be one of: " + ", ".join(setting.choices))
    return parts


def _in_range(setting: Setting, value: float) -> float:
    if value == setting.besides:
        return value
    if setting.low is not None and not value >= setting.low:
        raise ValueError(f"value must be at least {setting.low}")
    if setting.high is not None and not value <= setting.high:
        raise ValueError(f"value must be no more than {setting.high}")
    return value


_READERS: dict[Kind, Callable[[Setting, str], Any]] = {
    Kind.BOOLEAN: _read_boolean,
    Kind.STRING: _read_string,
    Kind.SHORT: _read_whole_number,
    Kind.INT: _read_whole_number,
    Kind.LONG: _read_whole_number,
    Kind.DOUBLE: _read_double,
    Kind.LIST: _read_list,
}


def setting(kind: Kind, default: Any, doc: str, **rules: Any) -> Any:
    """Declares a dataclass field as a setting. Its name is derived from the attribute's, see `settings_of`."""
    declared = Setting("", kind, default, doc, **rules)
    if default is REQUIRED:
        return field(metadata={"setting": declared})
    return field(default=default, metadata={"setting": declared})


@cache
def settings_of(config_class: type) -> Mapping[str, Setting]:
    """All settings that a class declares, by name, in the order of declaration."""
    declared = [
        (f.name.replace("_", "."), f.metadata["setting"]) for f in fields(config_class) if "setting" in f.metadata
    ]
    return {name: replace(found, name=name) for name, found in declared}
