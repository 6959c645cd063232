"""One run as a picture: a lane per broker, a column per step, and at each crossing what that broker got to know.

Steps are spread evenly, with their time below: most of a run is waiting. The picture is SVG with classes that the
page's style sheet colours, so that it follows the reader's light or dark theme.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import accumulate
from typing import Final

from sexton.reproduce.script import Event, Kind
from sexton.reproduce.world import AWAY, BROKERS, FIRST_LEADER

LEFT: Final = 84
COLUMN: Final = 88
READ_COLUMN: Final = 168
"""What was read stands above it."""

TOP: Final = 48
LANE: Final = 40
BOTTOM: Final = 30
BAR: Final = 14

WRITES: Final = frozenset({Kind.PRODUCE, Kind.DELETE, Kind.COMMIT, Kind.ABORT})
"""What brokers that are up come to know, and the one that is away does not."""

SYMBOLS: Final = {
    Kind.PRODUCE: "●",
    Kind.DELETE: "✝",
    Kind.COMMIT: "✓",
    Kind.ABORT: "✗",
    Kind.KILL: "✖",
    Kind.COMPACTED: "∅",
    Kind.KEPT: "◆",
    Kind.RETURN: "↑",
    Kind.LEAD: "★",
    Kind.READ: "?",
}


def svg(events: Sequence[Event], verdict: str, title: str) -> str:
    """`verdict` colours the last reading."""
    steps = [event for event in events if event.kind not in (Kind.START, Kind.BEGIN)]
    centres = _centres(steps)
    width = LEFT + sum(map(_width, steps)) + 12
    height = TOP + LANE * len(BROKERS) + BOTTOM
    parts = [
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" class="timeline">',
        f"<title>{escape(title)}</title>",
        *(_lane(broker, steps, centres, width) for broker in BROKERS),
        *(_column(centres[index], index, steps, verdict) for index in range(len(steps))),
        "</svg>",
    ]
    return "".join(parts)


def _width(step: Event) -> int:
    return READ_COLUMN if step.kind is Kind.READ else COLUMN


def _centres(steps: Sequence[Event]) -> list[float]:
    """Horizontal centres of the columns."""
    ends = accumulate(map(_width, steps), initial=LEFT)
    return [start + _width(step) / 2 for start, step in zip(ends, steps, strict=False)]


def _y(broker: int) -> float:
    return TOP + LANE * (BROKERS.index(broker) + 0.5)


def _index_of(kind: Kind, steps: Sequence[Event]) -> int | None:
    return next((index for index, step in enumerate(steps) if step.kind is kind), None)


def _lane(broker: int, steps: Sequence[Event], centres: Sequence[float], width: int) -> str:
    """The broker's name, and a bar for as long as it is up; darker while it leads."""
    y = _y(broker)
    killed, back, led = (_index_of(kind, steps) for kind in (Kind.KILL, Kind.RETURN, Kind.LEAD))
    end = width - 8.0
    parts = [f'<text x="8" y="{y + 4:g}" class="name">broker {broker}</text>']
    if broker == AWAY and killed is not None:
        parts.append(_bar(y, LEFT, centres[killed], "up"))
        gone_until = centres[back] if back is not None else end
        parts.append(_bar(y, centres[killed], gone_until, "down"))
        if back is not None:
            parts.append(_bar(y, centres[back], end, "up"))
    else:
        parts.append(_bar(y, LEFT, end, "up"))
    if broker == FIRST_LEADER:
        parts.append(_bar(y, LEFT, centres[led] if led is not None else end, "leads"))
    elif broker == AWAY and led is not None:
        parts.append(_bar(y, centres[led], end, "leads"))
    return "".join(parts)


def _bar(y: float, start: float, end: float, kind: str) -> str:
    return f'<rect x="{start:g}" y="{y - BAR / 2:g}" width="{end - start:g}" height="{BAR}" rx="4" class="{kind}"/>'


def _column(x: float, index: int, steps: Sequence[Event], verdict: str) -> str:
    step = steps[index]
    words = step.label.split("\n")
    top = TOP - 14 - 13 * (len(words) - 1)
    label = "".join(
        f'<text x="{x:g}" y="{top + 13 * line:g}" class="label">{escape(word)}</text>'
        for line, word in enumerate(words)
    )
    bottom = TOP + LANE * len(BROKERS) + 18
    time = f'<text x="{x:g}" y="{bottom}" class="time">{step.at_s:.0f} s</text>'
    guide = f'<line x1="{x:g}" y1="{TOP - 6}" x2="{x:g}" y2="{bottom - 14}" class="guide"/>'
    marks = "".join(_mark(x, _y(broker), kind, symbol) for broker, kind, symbol in _marks(index, step, steps, verdict))
    return f"<g><title>{escape(f'{step.at_s:.1f} s: {step.text}')}</title>{guide}{label}{marks}{time}</g>"


def _marks(index: int, step: Event, steps: Sequence[Event], verdict: str) -> list[tuple[int, str, str]]:
    """(broker, class, symbol) of everyone whom the step concerns."""
    killed, back, led = (_index_of(kind, steps) for kind in (Kind.KILL, Kind.RETURN, Kind.LEAD))
    is_away = killed is not None and index > killed and (back is None or index < back)
    here = [broker for broker in BROKERS if not (is_away and broker == AWAY)]
    leader = AWAY if led is not None and index > led else FIRST_LEADER
    if step.kind in WRITES:
        return [(broker, step.kind.value, SYMBOLS[step.kind]) for broker in here]
    if step.kind in (Kind.COMPACTED, Kind.KEPT):
        return [(leader, step.kind.value, SYMBOLS[step.kind])]  # nobody looked into the others' logs
    if step.kind is Kind.READ:
        is_last = index == max(i for i, each in enumerate(steps) if each.kind is Kind.READ)
        return [(leader, f"read {verdict}", "!" if verdict != "clean" else "✓")] if is_last else [(leader, "read", "?")]
    return [(AWAY, step.kind.value, SYMBOLS[step.kind])]


def _mark(x: float, y: float, kind: str, symbol: str) -> str:
    return (
        f'<circle cx="{x:g}" cy="{y:g}" r="11" class="mark {kind}"/>'
        f'<text x="{x:g}" y="{y + 4:g}" class="symbol {kind}">{symbol}</text>'
    )
