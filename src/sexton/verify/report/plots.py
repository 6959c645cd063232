"""The run over time, as one picture with one time axis: faults, latency, rate, how far consumers were behind, offsets.

Points are thinned to the lowest and the highest of each pixel column: no spike is lost, and the page stays small.
"""

from __future__ import annotations

import io
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sexton.checker.positions import realtime_lags
from sexton.checker.series import Unseen, unseen_over_time
from sexton.checker.view import View
from sexton.history.op import UNKNOWN, Ext, F, Type
from sexton.verify.report.bars import Bar
from sexton.verify.samples import Sample

Numbers = npt.NDArray[np.float64]
Point = tuple[float, float]

NS: Final = 1e9
WIDTH_PX: Final = 1_100
WIDTH_IN: Final = 11.5
ROW_IN: Final = 1.9
BAR_IN: Final = 0.22
LOGS_MAX: Final = 6
"""Whose offsets are drawn: those with findings, then those with most records."""

PERCENTILES: Final = {50: "-", 95: "--", 99: ":"}

INK: Final = "#1c2530"
SOFT: Final = "#5d6b7a"
LINE: Final = "#d8dee6"
GOOD: Final = "#1a7f4b"
BAD: Final = "#c0262d"
WARN: Final = "#b26a00"
BLUE: Final = "#2563a8"
VIOLET: Final = "#7a3fa0"
THEME: Final = {
    INK: "var(--ink)",
    SOFT: "var(--soft)",
    LINE: "var(--line)",
    GOOD: "var(--good)",
    BAD: "var(--bad)",
    WARN: "var(--warn)",
    BLUE: "var(--blue)",
    VIOLET: "var(--violet)",
}
"""The light theme's colours, and the names under which the page's style sheet has them for both."""

BANDS: Final = (BLUE, GOOD, WARN, VIOLET, BAD)
"""One for each of several logs or brokers."""

TYPES: Final = {Type.OK: GOOD, Type.FAIL: WARN, Type.INFO: BAD}

STYLE: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",  # letters stay letters: smaller, and the page's search finds them
    "svg.hashsalt": "sexton",  # the same run makes the same page
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": INK,
    "text.parse_math": False,
    "axes.edgecolor": LINE,
    "axes.labelcolor": SOFT,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "grid.color": LINE,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "legend.frameon": False,
}


def svg(
    view: View, bars: Sequence[Bar], final_ns: int, with_findings: Sequence[int], looks: Iterable[Sample] = ()
) -> str:
    """`final_ns` is when the final reads began, or UNKNOWN; `with_findings` are logs in which something was found."""
    held = held_back(looks)
    logs = _drawn_logs(view, with_findings)
    faults = list(dict.fromkeys(bar.fault for bar in bars))
    left = whole_reads(view)
    heights = [ROW_IN] * (4 + bool(left) + bool(held) + len(logs))
    if faults:
        heights.insert(0, BAR_IN * (len(faults) + 1))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_IN, sum(heights) + 0.55 * len(heights)), layout="constrained")
        rows = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0].tolist()
        for axes in rows:
            _mark(axes, bars, final_ns)
        if faults:
            _draw_bars(rows.pop(0), bars, faults)
        _draw_latency(rows[0], view)
        _draw_rate(rows[1], view)
        _draw_lag(rows[2], view)
        _draw_unseen(rows[3], view)
        if left:
            _draw_left(rows.pop(4), left, view.end_ns / NS)
        if held:
            _draw_held(rows.pop(4), held, view.end_ns / NS)
        for axes, log in zip(rows[4:], logs, strict=True):
            _draw_offsets(axes, view, log)
        for axes in figure.axes:
            axes.tick_params(labelbottom=True)
        for axes in rows:
            if axes.get_yscale() == "linear":
                axes.yaxis.set_major_locator(MaxNLocator(4))
        rows[-1].set_xlabel("seconds since the start")
        rows[-1].set_xlim(0, max(view.end_ns / NS, 1e-3))
        return _themed(figure)


def _themed(figure: Figure) -> str:
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    text = file.getvalue()
    for colour, name in THEME.items():
        text = text.replace(colour, name)
    return text[text.index("<svg") :].replace("<svg ", '<svg role="img" class="plots" ', 1)


def thinned(points: Iterable[Point], end: float, columns: int = WIDTH_PX) -> tuple[Numbers, Numbers]:
    """Of each column the lowest and the highest, by time."""
    array = np.array(sorted(points), dtype=np.float64).reshape(-1, 2)
    if len(array) <= 2 * columns:
        return array[:, 0], array[:, 1]
    column = np.minimum(array[:, 0] / max(end, 1e-9) * columns, columns - 1).astype(np.int64)
    order = np.lexsort((array[:, 1], column))
    firsts = np.flatnonzero(np.diff(column[order], prepend=-1))
    lasts = np.append(firsts[1:], len(order)) - 1
    kept = np.unique(np.concatenate([order[firsts], order[lasts]]))
    return array[kept, 0], array[kept, 1]


def _mark(axes: Axes, bars: Sequence[Bar], final_ns: int) -> None:
    for bar in bars:
        axes.axvspan(bar.start_ns / NS, bar.end_ns / NS, color=BAD, alpha=0.07, linewidth=0)
    if final_ns != UNKNOWN:
        axes.axvline(final_ns / NS, color=BLUE, linewidth=1, linestyle="--")


def _draw_bars(axes: Axes, bars: Sequence[Bar], faults: Sequence[str]) -> None:
    axes.set_title("Faults in force; from the dashed line on, final reads")
    for bar in bars:
        place = faults.index(bar.fault)
        axes.barh(place, (bar.end_ns - bar.start_ns) / NS, left=bar.start_ns / NS, height=0.7, color=BAD, alpha=0.6)
        axes.text(bar.start_ns / NS, place, f" {bar.told}", va="center", fontsize=7, clip_on=True)
    axes.set_yticks(range(len(faults)), faults)
    axes.set_ylim(len(faults) - 0.4, -0.6)


def _draw_latency(axes: Axes, view: View) -> None:
    axes.set_title("Latency, in ms: each operation, and percentiles of each second")
    by_second: dict[int, list[float]] = defaultdict(list)
    points: dict[Type, list[Point]] = defaultdict(list)
    for call in view.calls:
        if call.begin_ns == UNKNOWN or call.op.f in (F.CRASH, F.DEBUG):
            continue
        took_ms = (call.end_ns - call.begin_ns) / 1e6
        points[call.op.type].append((call.end_ns / NS, took_ms))
        by_second[int(call.end_ns / NS)].append(took_ms)
    for type_, colour in TYPES.items():
        if points[type_]:
            times, took = thinned(points[type_], view.end_ns / NS)
            axes.plot(times, took, ".", markersize=2.5, color=colour, alpha=0.7, label=type_.name.lower())
    seconds = sorted(by_second)
    for percentile, line in PERCENTILES.items():
        values = [float(np.percentile(by_second[second], percentile)) for second in seconds]
        axes.plot([second + 0.5 for second in seconds], values, line, color=INK, linewidth=1, label=f"p{percentile}")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    _legend(axes)


def _draw_rate(axes: Axes, view: View) -> None:
    axes.set_title("Operations completed in each second")
    counts: dict[Type, dict[int, int]] = {type_: defaultdict(int) for type_ in TYPES}
    for call in view.calls:
        if call.op.f not in (F.CRASH, F.DEBUG):
            counts[call.op.type][int(call.end_ns / NS)] += 1
    seconds = range(int(view.end_ns / NS) + 1)
    for type_, colour in TYPES.items():
        rates = [counts[type_][second] for second in seconds]
        if any(rates):
            axes.step(seconds, rates, where="post", color=colour, linewidth=1.2, label=type_.name.lower())
    axes.set_ylim(bottom=0)
    _legend(axes)


def _draw_lag(axes: Axes, view: View) -> None:
    axes.set_title("How far consumers were behind, in seconds: the worst log of each poll")
    worst: dict[int, Point] = {}
    for lag in realtime_lags(view):
        behind_s = max(lag.lag_ns / NS, worst.get(lag.call.index, (0.0, 0.0))[1])
        worst[lag.call.index] = (lag.call.end_ns / NS, behind_s)
    times, values = thinned(worst.values(), view.end_ns / NS)
    axes.plot(times, values, ".", markersize=2.5, color=VIOLET)
    axes.set_ylim(bottom=0)


def _draw_unseen(axes: Axes, view: View) -> None:
    """The logs with most of them one upon the other, and what all others have on top."""
    axes.set_title("Records that were acknowledged and not yet read by anybody, by log")
    looks = _worst_of_columns(unseen_over_time(view), view.end_ns)
    most: Counter[int] = Counter()
    for look in looks:
        most |= Counter(look.counts)
    named = [log for log, _ in most.most_common(len(BANDS))]
    bands = [[float(look.counts.get(log, 0)) for look in looks] for log in named]
    others = [float(sum(look.counts.values()) - sum(look.counts.get(log, 0) for log in named)) for look in looks]
    labels = [f"log {view.run.log_names.get(log, log)}" for log in named]
    if any(others):
        bands, labels = [*bands, others], [*labels, "all others"]
    if bands:
        times = [look.time_ns / NS for look in looks]
        axes.stackplot(times, *bands, labels=labels, colors=[*BANDS[: len(named)], SOFT], alpha=0.6, step="post")
        _legend(axes)
    axes.set_ylim(bottom=0)


def _worst_of_columns(looks: Iterable[Unseen], end_ns: int) -> list[Unseen]:
    """Of each column the look at which most were unseen, and the last of all."""
    worst: dict[int, tuple[int, Unseen]] = {}
    last = None
    for last in looks:
        total = sum(last.counts.values())
        column = last.time_ns * WIDTH_PX // max(end_ns, 1)
        if column not in worst or worst[column][0] < total:
            worst[column] = total, last
    found = [look for _, look in worst.values()]
    return found if last is None or last in found[-1:] else [*found, last]


class Left(NamedTuple):
    """Of a read of a whole compacted log: how many of the offsets that it passed still had a record, in percent."""

    time_s: float
    records: float
    tombstones: float


def whole_reads(view: View) -> list[Left]:
    """By time."""
    found = []
    for call in view.calls:
        if not call.is_ok or call.op.f not in (F.TABLE, F.SCAN):
            continue
        for log, span in call.op.spans.items():
            named, passed = view.run.logs.get(log), span.end_offset - span.start_offset
            if named is not None and named.is_compacted and passed > 0:
                records = call.polled.get(log, ())
                tombstones = sum(record.is_tombstone for record in records)
                found.append(Left(call.end_ns / NS, 100 * len(records) / passed, 100 * tombstones / passed))
    return found


def _draw_left(axes: Axes, left: Sequence[Left], end_s: float) -> None:
    axes.set_title("Compaction: in how many of the offsets of a whole log its readers found something, in %")
    for place, (name, colour) in enumerate({"records": BLUE, "tombstones": WARN}.items(), start=1):
        times, shares = thinned([(each.time_s, each[place]) for each in left], end_s)
        axes.plot(times, shares, ".", markersize=3, color=colour, alpha=0.7, label=name)
    axes.set_ylim(bottom=0)
    _legend(axes)


class Held(NamedTuple):
    """At one look: how far below a high watermark removal had to stop, in the log and replica where it was farthest."""

    time_s: float
    mtro: float
    mxro: float


def held_back(looks: Iterable[Sample]) -> list[Held]:
    """By time; nothing where nobody has such watermarks (Sexton alone has)."""
    worst: dict[int, tuple[int, int]] = {}
    for each in looks:
        if each.mtro is not None and each.mxro is not None and each.high_watermark is not None:
            mtro, mxro = worst.get(each.time_ns, (0, 0))
            behind = each.high_watermark - each.mtro, each.high_watermark - each.mxro
            worst[each.time_ns] = max(mtro, behind[0]), max(mxro, behind[1])
    return [Held(time_ns / NS, *map(float, behind)) for time_ns, behind in sorted(worst.items())]


def _draw_held(axes: Axes, held: Sequence[Held], end_s: float) -> None:
    axes.set_title("Compaction: how far below a high watermark tombstones (MTRO) and markers (MXRO) had to stay")
    for name, colour in (("mtro", WARN), ("mxro", VIOLET)):
        times, behind = thinned([(each.time_s, getattr(each, name)) for each in held], end_s)
        axes.step(times, behind, where="post", color=colour, linewidth=1.2, label=name.upper())
    axes.set_ylim(bottom=0)
    _legend(axes)


def _draw_offsets(axes: Axes, view: View, log: int) -> None:
    named = view.run.logs.get(log)
    place = f" ({named.topic}, partition {named.partition})" if named else ""
    axes.set_title(f"Offsets of log {view.run.log_names.get(log, log)}{place}")
    sent = [
        (call.end_ns / NS, float(send.offset))
        for call, send in view.sends_to.get(log, ())
        if call.is_ok and send.offset != UNKNOWN
    ]
    polled = [
        (call.end_ns / NS, float(record.offset))
        for call in view.calls
        if call.is_ok
        for record in call.polled.get(log, ())
    ]
    for points, colour, size, label in ((polled, BLUE, 2.0, "polled"), (sent, GOOD, 3.5, "acknowledged")):
        times, offsets = thinned(points, view.end_ns / NS)
        if len(times):
            axes.plot(times, offsets, ".", markersize=size, color=colour, alpha=0.7, label=label)
    for name, line, label in (
        (Ext.HIGH_WATERMARKS, "-", "high watermark"),
        (Ext.LAST_STABLE_OFFSETS, "--", "last stable offset"),
        (Ext.LOG_STARTS, ":", "log start"),
    ):
        looks = [
            (call.end_ns / NS, view.by_log(call, name)[log]) for call in view.probes if log in view.by_log(call, name)
        ]
        if looks:
            axes.plot(*zip(*looks, strict=True), line, color=SOFT, linewidth=1, label=label)
    axes.set_ylim(bottom=0)
    _draw_leaders(axes, view, log)
    _legend(axes)


def leaders_of(view: View, log: int) -> list[tuple[float, float, int]]:
    """From when to when which broker led it, as far as anybody asked: each until the first look that found another."""
    looks = [(call.end_ns / NS, led[log]) for call in view.probes if log in (led := view.by_log(call, Ext.LEADERS))]
    found: list[tuple[float, float, int]] = []
    for at_s, broker in looks:
        if found:
            start_s, _, before = found[-1]
            found[-1] = start_s, at_s, before
        if not found or found[-1][2] != broker:
            found.append((at_s, at_s, broker))
    return found


def _draw_leaders(axes: Axes, view: View, log: int) -> None:
    """A band along the top, with the broker's number where its time begins."""
    for start_s, end_s, broker in leaders_of(view, log):
        axes.axvspan(start_s, end_s, 0.93, 1.0, color=BANDS[broker % len(BANDS)], alpha=0.35, linewidth=0)
        axes.annotate(f" {broker} leads", (start_s, 0.965), xycoords=("data", "axes fraction"), va="center", fontsize=7)


def _legend(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)


def _drawn_logs(view: View, with_findings: Sequence[int]) -> list[int]:
    """Every log that has something to draw may be one."""
    counts = {log: len(order.offsets) for log, order in view.orders.items()}
    wanted = [log for log in dict.fromkeys(with_findings) if log in counts]
    busiest = sorted(counts.keys() - set(wanted), key=lambda log: (-counts[log], log))
    return sorted([*wanted, *busiest][:LOGS_MAX])
