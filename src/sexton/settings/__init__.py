"""Every setting of topics, brokers and groups, once: name, type, default, valid values, meaning.

`schema.py` says what a setting is; `topic.py`, `broker.py` and `group.py` declare them; `layers.py` decides which value
applies and where it comes from, `checks.py` which may be set; `broker_config.py` is one broker's own configs, read from
its file (`properties.py`); `reference.py` writes `docs/settings.md`.
"""
