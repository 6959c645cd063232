"""One way to speak to every client: a module each, all with the same `Producer` and `Consumer` (see base.py)."""
