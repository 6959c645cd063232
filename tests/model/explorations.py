"""Arenas that are explored with all rules on, as far as there is time.

`FINE` take every message as a step of its own and go deep into few records; `COARSE` take a follower's conversation
with its leader as one step and go wide: more records, more kinds of event.
"""

from __future__ import annotations

from tests.model.arenas import (
    ABORTS,
    COMMITS,
    DELETE_A,
    DELETE_B,
    PUT_A,
    PUT_B,
    T_DELETE_A,
    T_PUT_A,
    T_PUT_B,
    Arena,
    script,
)
from tests.model.deferral_traps import CLEAN_VALUE
from tests.model.traps import COMPACT_ALL, SYNC_ALL, put

PLAIN = ((PUT_A, PUT_B), (DELETE_A, PUT_A))
TRANSACTION = ((T_PUT_A,), (ABORTS, COMMITS))

FINE = {
    "a value and its tombstone": Arena(script(PUT_A, DELETE_A), epochs_max=0),
    "a value and its tombstone, a change of leader": Arena(script(PUT_A, DELETE_A), epochs_max=1),
    "a transaction": Arena(TRANSACTION, epochs_max=0),
    "a transaction, a change of leader": Arena(TRANSACTION, epochs_max=1, every_bound=True),
    "late messages": Arena(script(PUT_A, DELETE_A), epochs_max=1, crashes=False, late_messages=True),
    "unflushed records": Arena(PLAIN, epochs_max=1, lazy_flush=True),
}

COARSE = {
    "two transactions": Arena(
        ((T_PUT_A,), (ABORTS, COMMITS), (T_PUT_B, T_DELETE_A), (ABORTS, COMMITS)),
        epochs_max=1,
        crashes=False,
        coarse=True,
    ),
    "members come and go": Arena(
        script(PUT_A, DELETE_A), epochs_max=1, crashes=False, membership=True, incarnations_max=2, coarse=True
    ),
    "disks are lost and put back": Arena(
        script(PUT_A, DELETE_A), epochs_max=1, lost_disks=True, images=True, incarnations_max=2, coarse=True
    ),
    "a slow consumer": Arena(script(PUT_A, DELETE_A, PUT_B), epochs_max=1, crashes=False, consumer=True, coarse=True),
    "retention": Arena(
        script(PUT_A, DELETE_A, PUT_B), epochs_max=1, crashes=False, retention=True, partial_fetches=True, coarse=True
    ),
    "adoption": Arena(
        script(PUT_A, DELETE_A, PUT_B),
        epochs_max=1,
        crashes=False,
        adopts=True,
        offers_max=2,
        lost_disks=True,
        incarnations_max=2,
        every_bound=True,
        coarse=True,
    ),
    "crashes within an adoption": Arena(
        script(PUT_A, PUT_B, DELETE_A),
        epochs_max=1,
        adopts=True,
        offers_max=2,
        swap_crashes=True,
        every_bound=True,
        coarse=True,
    ),
    "crashes within the swap, plans that wait": Arena(
        script(PUT_A, DELETE_A), epochs_max=1, plans=True, swap_crashes=True, every_bound=True, coarse=True
    ),
    "forced elections": Arena(
        script(PUT_A, PUT_B, DELETE_A), epochs_max=2, generations_max=1, incarnations_max=3, coarse=True
    ),
}

OVERWRITTEN = script(PUT_A, PUT_A, DELETE_A)
SETTLED_VALUE = (*put(T_PUT_A, COMMITS), SYNC_ALL, COMPACT_ALL, SYNC_ALL)

DEFERRED = {
    "values are left": Arena(OVERWRITTEN, epochs_max=0, crashes=False, coarse=True, defers=True, prefix=CLEAN_VALUE),
    "values are left, a change of leader": Arena(
        OVERWRITTEN, epochs_max=1, crashes=False, every_bound=True, coarse=True, defers=True, prefix=CLEAN_VALUE
    ),
    "values are left, message by message": Arena(OVERWRITTEN, epochs_max=0, defers=True, prefix=CLEAN_VALUE),
    "values are left, tombstones among them": Arena(
        (*script(PUT_A), (PUT_A, DELETE_A), (PUT_A, DELETE_A, PUT_B), (PUT_A, DELETE_A)),
        epochs_max=1,
        crashes=False,
        every_bound=True,
        coarse=True,
        defers=True,
        prefix=CLEAN_VALUE,
    ),
    "values are left, transactions": Arena(
        (*script(T_PUT_A, COMMITS), (T_PUT_A, T_DELETE_A), (ABORTS, COMMITS)),
        epochs_max=1,
        crashes=False,
        every_bound=True,
        coarse=True,
        defers=True,
        prefix=SETTLED_VALUE,
    ),
    "values are left, members come and go": Arena(
        OVERWRITTEN,
        epochs_max=1,
        crashes=False,
        membership=True,
        incarnations_max=2,
        partial_fetches=True,
        coarse=True,
        defers=True,
        prefix=CLEAN_VALUE,
    ),
    "values are left, disks are lost and put back": Arena(
        OVERWRITTEN,
        epochs_max=1,
        lost_disks=True,
        images=True,
        incarnations_max=2,
        coarse=True,
        defers=True,
        prefix=CLEAN_VALUE,
    ),
    "values are left, a slow consumer": Arena(
        (*OVERWRITTEN, (PUT_A, PUT_B)),
        epochs_max=1,
        crashes=False,
        consumer=True,
        coarse=True,
        defers=True,
        prefix=CLEAN_VALUE,
    ),
    "values are left, retention": Arena(
        (*OVERWRITTEN, (PUT_B,)),
        epochs_max=1,
        crashes=False,
        retention=True,
        partial_fetches=True,
        coarse=True,
        defers=True,
        prefix=CLEAN_VALUE,
    ),
    "values are left, adoption": Arena(
        OVERWRITTEN,
        epochs_max=1,
        crashes=False,
        adopts=True,
        offers_max=2,
        lost_disks=True,
        incarnations_max=2,
        every_bound=True,
        coarse=True,
        defers=True,
        prefix=CLEAN_VALUE,
    ),
    "values are left, crashes within an adoption": Arena(
        script(PUT_A, DELETE_A, PUT_A),
        epochs_max=1,
        adopts=True,
        offers_max=2,
        swap_crashes=True,
        every_bound=True,
        coarse=True,
        defers=True,
        prefix=CLEAN_VALUE,
    ),
    "values are left, crashes within the swap, plans that wait": Arena(
        OVERWRITTEN,
        epochs_max=1,
        plans=True,
        swap_crashes=True,
        every_bound=True,
        coarse=True,
        defers=True,
        prefix=CLEAN_VALUE,
    ),
    "values are left, forced elections": Arena(
        (*script(PUT_A, DELETE_A), (PUT_A, DELETE_A)),
        epochs_max=2,
        generations_max=1,
        incarnations_max=3,
        partial_fetches=True,
        coarse=True,
        defers=True,
        prefix=CLEAN_VALUE,
    ),
    "values are left, a topic leaves independent": Arena(
        OVERWRITTEN,
        epochs_max=1,
        crashes=False,
        incarnations_max=2,
        starts_independent=True,
        coarse=True,
        defers=True,
        prefix=(*CLEAN_VALUE, ("leave_independent",)),
    ),
}
"""With deferral (`deferral.py`), which is not built: one key is written again and again."""

EVERYTHING = Arena(
    ((PUT_A, PUT_B, DELETE_A, DELETE_B, T_PUT_A, T_PUT_B, T_DELETE_A, COMMITS, ABORTS),) * 14,
    epochs_max=12,
    incarnations_max=12,
    generations_max=0,
    lazy_flush=True,
    partial_fetches=True,
    every_bound=True,
    late_messages=True,
    membership=True,
    lost_disks=True,
    images=True,
    plans=True,
    adopts=True,
    offers_max=3,
    snapshots=3,
    swap_crashes=True,
)
"""For random walks: all that can happen, for long."""

OVERWRITING = EVERYTHING._replace(
    script=((PUT_A, PUT_A, PUT_A, DELETE_A, PUT_B, T_PUT_A, T_DELETE_A, COMMITS, ABORTS),) * 14,
    lazy_flush=False,
    late_messages=False,
    snapshots=0,
    coarse=True,
    defers=True,
)
FEW_FAILURES = OVERWRITING._replace(images=False, membership=False, plans=False)

WALKS = {
    "with a slow consumer": EVERYTHING._replace(consumer=True),
    "with retention and a live producer": EVERYTHING._replace(retention=True, live_producer=True),
    "with forced elections": EVERYTHING._replace(generations_max=2),
    "with forced elections and retention": EVERYTHING._replace(generations_max=2, retention=True),
    "in whole conversations": EVERYTHING._replace(coarse=True, consumer=True),
    "and values are left, by anybody at any time": EVERYTHING._replace(defers=True, generations_max=1),
    "and values are left, with a slow consumer": FEW_FAILURES._replace(consumer=True),
    "and values are left, with little else": FEW_FAILURES._replace(
        crashes=False, swap_crashes=False, lost_disks=False, consumer=True
    ),
    "and values are left, with forced elections": OVERWRITING._replace(generations_max=2),
    "and values are left, with retention": OVERWRITING._replace(retention=True, live_producer=True),
}
