"""One module per API key. Each has API_KEY, VERSIONS (lowest, highest) and `handle(broker, request)`, and its docstring
says what it does and where it differs from Kafka. Every module in this package that has an API_KEY is offered to
clients; there is no other list. Modules without an API_KEY are helpers."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from sexton.broker.network.request import Handler

API_VERSIONS_KEY = 18


class ApiModule(Protocol):
    API_KEY: int
    VERSIONS: tuple[int, int]
    handle: Handler


@cache
def modules() -> Mapping[int, ApiModule]:
    """All API modules by API key, in ascending order."""
    found: dict[int, ApiModule] = {}
    for info in pkgutil.iter_modules(__path__):
        module = import_module(f"{__name__}.{info.name}")
        if hasattr(module, "API_KEY"):
            api = cast(ApiModule, module)
            assert api.API_KEY not in found, f"two modules for API key {api.API_KEY}"
            found[api.API_KEY] = api
    return MappingProxyType(dict(sorted(found.items())))
