"""The twin of what `checker.groups` finds in groups and what they have committed.

A *place* is one group in one log, by its number; rows of places are by place and call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from sexton.checker.evidence import Case
from sexton.checker.kernels.arrays import Bools, Longs, Rows
from sexton.checker.kernels.columns import Columns, is_f, ranks, sort_by, starts_of, unique
from sexton.checker.kernels.exts import Exts
from sexton.checker.kernels.found import Cases, Found, worst
from sexton.checker.kernels.removal import Removals
from sexton.checker.removal import NEVER_NS
from sexton.history.op import NAMES_OFFSETS, UNKNOWN, F, Type
from sexton.jit import kernel

_GIVES = (F.POLL, F.TXN, F.EOS)


class Highest(NamedTuple):
    """Of each segment, by time: the highest offset so far, and the first who had it."""

    start: Longs
    time_ns: Longs
    offset: Longs
    call: Longs


def highest_of(segment: Longs, count: int, time_ns: Longs, offset: Longs, call: Longs) -> Highest:
    order = np.lexsort((call, time_ns, segment))
    start = np.searchsorted(segment[order], np.arange(count + 1))
    offset, call = offset[order], call[order]
    _highest_so_far(start, offset, call)
    return Highest(start, time_ns[order], offset, call)


@kernel
def _highest_so_far(start: Longs, offset: Longs, call: Longs) -> None:
    for segment in range(len(start) - 1):
        for row in range(start[segment] + 1, start[segment + 1]):
            if offset[row] <= offset[row - 1]:
                offset[row] = offset[row - 1]
                call[row] = call[row - 1]


@kernel
def before(highest: Highest, segment: Longs, time_ns: Longs) -> Longs:
    """Rows, or UNKNOWN: the last before each time."""
    found = np.empty(len(segment), np.int64)
    for row in range(len(segment)):
        start, end = highest.start[segment[row]], highest.start[segment[row] + 1]
        place = start + np.searchsorted(highest.time_ns[start:end], time_ns[row])
        found[row] = place - 1 if place > start else UNKNOWN
    return found


class _Touched(NamedTuple):
    """Calls of groups that have to do with a log: by place and call."""

    place: Longs
    call: Longs
    span: Longs
    """Or UNKNOWN."""
    is_polled: Bools


class _Committed(NamedTuple):
    place: Longs
    call: Longs
    offset: Longs


class Groups:
    def __init__(self, columns: Columns, exts: Exts, process: Longs) -> None:
        """`process`: of each call, its rank."""
        self._columns, self._exts, self._process = columns, exts, process
        self._is_of_group = (exts.group != UNKNOWN) & (columns.begin_ns != UNKNOWN)
        self._gives = is_f(columns.calls, *_GIVES)
        spans, polls, named = columns.spans, columns.polls, self._named()
        polled = self._pairs(polls.call, polls.log)
        pairs = unique(np.concatenate([self._pairs(spans.call, spans.log), polled, named[0]]))
        call, log = np.divmod(pairs, max(len(columns.logs), 1))
        group = exts.group[call].astype(np.int64)
        place, first = ranks(group, log)
        self.group, self.log = group[first], log[first]
        """By place."""
        order = sort_by(place, call)
        span = columns.span_of(call, log)
        is_polled = np.isin(pairs, polled)
        self._touched = _Touched(place[order], call[order], span[order], is_polled[order])
        self._start = np.searchsorted(self._touched.place, np.arange(self.count + 1))
        at = np.searchsorted(pairs, named[0])
        self._offsets = _Committed(place[at], call[at], named[1])

    @property
    def count(self) -> int:
        return len(self.group)

    def _pairs(self, call: Longs, log: Longs) -> Longs:
        wanted = self._is_of_group[call]
        return unique(self._columns.pack(call[wanted], log[wanted]))

    def _named(self) -> tuple[Longs, Longs]:
        """Call and log, packed and sorted, and the offset that was committed or told."""
        columns = self._columns
        names = is_f(columns.calls, *NAMES_OFFSETS)
        found = []
        for rows, wanted in ((columns.offsets, names), (columns.sent, ~names)):
            some = np.flatnonzero((wanted & self._is_of_group)[rows.call])
            found.append((columns.pack(rows.call[some], rows.log[some]), rows.offset[some]))
        pairs, offset = (np.concatenate(it) for it in zip(*found, strict=True))
        order = np.argsort(pairs, kind="stable")
        return pairs[order], offset[order]

    def _only(self, wanted: Bools) -> _Committed:
        """Of calls that are wanted: by place and call."""
        rows = np.flatnonzero(wanted[self._offsets.call])
        rows = rows[sort_by(self._offsets.place[rows], self._offsets.call[rows])]
        return _Committed(self._offsets.place[rows], self._offsets.call[rows], self._offsets.offset[rows])

    @cached_property
    def certain(self) -> _Committed:
        return self._only(self._columns.is_ok)

    @cached_property
    def _commits(self) -> _Committed:
        return self._only(~self._columns.is_fail & ~is_f(self._columns.calls, F.COMMITTED))

    @cached_property
    def _members(self) -> _Touched:
        some = self._touched
        rows = np.flatnonzero(self._gives[some.call])
        return _Touched(some.place[rows], some.call[rows], some.span[rows], some.is_polled[rows])

    @cached_property
    def _doubts(self) -> tuple[Longs, Longs, Bools]:
        """By place: when a member that died while it polled began at the earliest, from which offset on nobody knows
        what it was given, and whether there is any member."""
        columns, members = self._columns, self._members
        died = np.flatnonzero(self._gives & self._is_of_group & (columns.type == Type.INFO))
        died = died[sort_by(self._exts.group[died].astype(np.int64), died)]
        found_ns, found_from = np.full(self.count, NEVER_NS), np.full(self.count, NEVER_NS)
        is_member = np.zeros(self.count, np.bool_)
        _unaccounted(
            *(np.searchsorted(members.place, np.arange(self.count + 1)), members.call, members.span, members.is_polled),
            *(columns.spans.end_offset, self._touched.call[self._start[:-1]], self.group, died),
            *(np.searchsorted(self._exts.group[died], np.arange(len(self._exts.groups) + 1)), columns.type),
            *(self._process, columns.begin_ns, np.full(len(columns.calls) + 1, UNKNOWN)),
            *(np.zeros(len(columns.calls) + 1, np.int64), found_ns, found_from, is_member),
        )
        return found_ns, found_from, is_member

    @cached_property
    def _highest_certain(self) -> tuple[Longs, Longs]:
        """By place: the highest offset that is certain, or UNKNOWN - 1, and the first call that knew it."""
        offset, call = np.full(self.count, UNKNOWN - 1), np.full(self.count, UNKNOWN)
        order = np.lexsort((-self.certain.call, self.certain.offset, self.certain.place))
        place = self.certain.place[order]
        offset[place], call[place] = self.certain.offset[order], self.certain.call[order]
        return offset, call

    def _detail(self, place: Longs, **more: Longs) -> Any:
        def detail(row: int) -> Mapping[str, Any]:
            named = {name.replace("_", "-"): int(column[row]) for name, column in more.items()}
            return {"group": self._exts.groups[self.group[place[row]]], **named}

        return detail

    def committed_too_far(self, evidence_max: int) -> Found:
        columns, members, certain = self._columns, self._members, self.certain
        has_span = members.span != UNKNOWN
        begin_ns = columns.begin_ns[members.call]
        doubtful_ns = np.minimum(self._doubts[0], columns.end_of_all_ns + 1)
        is_placeless = members.is_polled & ~has_span
        np.minimum.at(doubtful_ns, members.place[is_placeless], begin_ns[is_placeless])
        end_offset = columns.spans.end_offset[members.span[has_span]]
        given = highest_of(members.place[has_span], self.count, begin_ns[has_span], end_offset, members.call[has_span])
        is_told = given.start[1:] > given.start[:-1]
        end_ns = columns.end_ns[certain.call]
        row = before(given, certain.place, end_ns)
        given_to = np.append(given.offset, 0)[row]
        is_case = is_told[certain.place] & (end_ns < doubtful_ns[certain.place]) & (certain.offset > given_to)
        cases = Cases(
            log=self.log[certain.place],
            ops=(certain.call,),
            values=(),
            severity=certain.offset - given_to,
            detail=self._detail(certain.place, offset=certain.offset, given_to=given_to),
        )
        return cases.only(is_case).found(columns, evidence_max)

    def group_skip(self, removals: Removals, evidence_max: int) -> Found:
        columns = self._columns
        offset, call = self._highest_certain
        _, doubtful_from, is_member = self._doubts
        gives = (self._gives & self._is_of_group)[columns.polls.call]
        group = self._exts.group[columns.polls.call[gives]].astype(np.int64)
        given = unique(group * columns.vid_count + columns.polls.vid[gives])
        found = [np.zeros((0, 2), np.int64)]
        for place in np.flatnonzero((call != UNKNOWN) & is_member).tolist():
            below_offset = min(int(offset[place]), int(doubtful_from[place]))
            vid = self._processed(removals, int(self.log[place]), below_offset)
            vid = vid[~_is_among(given, self.group[place] * columns.vid_count + vid)]
            found.append(np.stack([np.full(len(vid), place), vid], axis=1))
        place, vid = np.concatenate(found).T
        detail = self._detail(place, offset=columns.order.offset_of(vid), committed=offset[place])
        ops = columns.sender_of[vid], call[place]
        return Cases(log=self.log[place], ops=ops, values=(vid,), detail=detail).found(columns, evidence_max)

    def _processed(self, removals: Removals, log: int, below_offset: int) -> Longs:
        """What is certainly in the log below an offset, and not gone by the end."""
        columns = self._columns
        vid = columns.vids_of(log)
        is_wanted = (columns.order.last[vid] != UNKNOWN) & (columns.order.offset_of(vid) < below_offset)
        is_wanted &= columns.is_certainly_sent[vid]
        is_wanted &= ~removals.may_be_gone(vid, columns.end_of_all_ns)
        processed: Longs = vid[is_wanted]
        return processed

    def offset_went_back(self, evidence_max: int) -> Found:
        columns, certain, commits = self._columns, self.certain, self._commits
        assigned = self._process[is_f(columns.calls, F.ASSIGN)]
        is_odd = self._exts.is_reset[commits.call] | np.isin(self._process[commits.call], assigned)
        is_judged = np.ones(self.count, np.bool_)
        is_judged[commits.place[is_odd]] = False
        committed = highest_of(certain.place, self.count, columns.end_ns[certain.call], certain.offset, certain.call)
        row = before(committed, certain.place, columns.begin_ns[certain.call])
        higher, higher_call = np.append(committed.offset, UNKNOWN - 1)[row], np.append(committed.call, 0)[row]
        is_case = is_judged[certain.place] & (row != UNKNOWN) & (higher > certain.offset)
        asked = np.flatnonzero(is_case & is_f(columns.calls, F.COMMITTED)[certain.call])
        order = sort_by(commits.place, commits.offset)
        is_case[asked] = ~_is_explained(
            *(certain.place[asked], certain.offset[asked], columns.begin_ns[higher_call[asked]]),
            *(columns.end_ns[certain.call[asked]], np.searchsorted(commits.place, np.arange(self.count + 1))),
            *(commits.offset[order], commits.call[order], columns.begin_ns, columns.end_ns, columns.type),
        )
        detail = self._detail(certain.place, **{"from": higher, "to": certain.offset})
        cases = Cases(
            log=self.log[certain.place],
            ops=(higher_call, certain.call),
            values=(),
            severity=higher - certain.offset,
            detail=detail,
        )
        return cases.only(is_case).found(columns, evidence_max)

    def processed(self, removals: Removals, is_copier: Bools) -> Mapping[int, tuple[Longs, int, int]]:
        """By log: what counts as processed by what groups of copiers have committed, as vids, with the highest commit's
        offset and call. `is_copier`: of groups."""
        offset, call = self._highest_certain
        places = np.flatnonzero(is_copier[self.group] & (call != UNKNOWN))
        places = places[np.lexsort((call[places], -offset[places], self.log[places]))]
        highest = places[starts_of(self.log[places])]
        return {
            int(self.log[place]): (
                self._processed(removals, int(self.log[place]), int(offset[place])),
                int(offset[place]),
                int(call[place]),
            )
            for place in highest
        }


def _is_among(known: Longs, wanted: Longs) -> Bools:
    """`known` is sorted: NumPy's `isin` would sort it again for each log. Nor is it copied for each."""
    if not len(known):
        return np.zeros(len(wanted), np.bool_)
    found: Bools = known[np.minimum(np.searchsorted(known, wanted), len(known) - 1)] == wanted
    return found


def found_in_groups(groups: Groups, removals: Removals, evidence_max: int) -> Iterator[tuple[str, Found]]:
    yield "committed-too-far", groups.committed_too_far(evidence_max)
    yield "group-skip", groups.group_skip(removals, evidence_max)
    yield "offset-went-back", groups.offset_went_back(evidence_max)


@kernel
def _unaccounted(
    start: Longs,
    call: Longs,
    span: Longs,
    is_polled: Bools,
    end_offset: Longs,
    first_call: Longs,
    group: Longs,
    died: Longs,
    died_start: Longs,
    type_: Longs,
    process: Longs,
    begin_ns: Longs,
    placed: Longs,
    position: Longs,
    found_ns: Longs,
    found_from: Longs,
    is_member: Bools,
) -> None:
    """`start` to `is_polled`: members by place; `died`: by group, members of which no completion is known, who count
    as members of all places of the group that were met before. `placed` says for which place `position`, by process,
    was set."""
    for place in range(len(group)):
        row, end = start[place], start[place + 1]
        first, last = died_start[group[place]], died_start[group[place] + 1]
        at = first + np.searchsorted(died[first:last], first_call[place], "right")
        is_member[place] = row < end or at < last
        while row < end or at < last:
            if row < end and (at == last or call[row] <= died[at]):
                by, has_span = call[row], span[row] != UNKNOWN
                is_doubtful = type_[by] == 3 and not has_span and not is_polled[row]
                if at < last and died[at] == by:
                    at += 1
                if has_span:
                    placed[process[by]] = place
                    position[process[by]] = end_offset[span[row]]
                row += 1
            else:
                by, is_doubtful = died[at], True
                at += 1
            if is_doubtful:
                from_offset = position[process[by]] if placed[process[by]] == place else 0
                found_ns[place] = min(found_ns[place], begin_ns[by])
                found_from[place] = min(found_from[place], from_offset)


@kernel
def _is_explained(
    place: Longs,
    offset: Longs,
    higher_begin_ns: Longs,
    later_end_ns: Longs,
    start: Longs,
    commit_offset: Longs,
    commit_call: Longs,
    begin_ns: Longs,
    end_ns: Longs,
    type_: Longs,
) -> Bools:
    """Commits by place and offset."""
    found = np.zeros(len(place), np.bool_)
    for asked in range(len(place)):
        first, end = start[place[asked]], start[place[asked] + 1]
        row = first + np.searchsorted(commit_offset[first:end], offset[asked])
        while row < end and commit_offset[row] == offset[asked] and not found[asked]:
            by = commit_call[row]
            may_end_ns = later_end_ns[asked] if type_[by] == 3 else end_ns[by]
            found[asked] = higher_begin_ns[asked] <= may_end_ns and begin_ns[by] < later_end_ns[asked]
            row += 1
    return found


def zombie_commit(calls: Rows, exts: Exts, evidence_max: int) -> Found:
    """Of the whole history."""
    told = np.flatnonzero(exts.has_generation & (calls["type"] == Type.OK))
    segment = exts.group[told].astype(np.int64) + 1
    generation, end_ns = exts.generation[told], calls["end_ns"][told]
    seen = highest_of(segment, len(exts.groups) + 1, end_ns, generation, told)
    is_commit = is_f(calls, F.COMMIT)[told]
    told, segment, generation = told[is_commit], segment[is_commit], generation[is_commit]
    row = before(seen, segment, calls["begin_ns"][told])
    later, by = np.append(seen.offset, 0)[row], np.append(seen.call, 0)[row]
    is_case = (row != UNKNOWN) & (later > generation)
    is_case[is_case] &= calls["process"][by[is_case]] != calls["process"][told[is_case]]
    told, segment, generation, later, by = (it[is_case] for it in (told, segment, generation, later, by))
    names = ["", *exts.groups]
    cases = [
        Case(
            ops=(int(calls["index"][by[row]]), int(calls["index"][told[row]])),
            severity=int(later[row] - generation[row]),
            detail={
                "group": names[segment[row]],
                "generation": int(generation[row]),
                "later-generation": int(later[row]),
            },
        )
        for row in worst(later - generation, (by, told), evidence_max)
    ]
    return Found(len(told), cases)
