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

WALKS = {
    "with a slow consumer": EVERYTHING._replace(consumer=True),
    "with retention and a live producer": EVERYTHING._replace(retention=True, live_producer=True),
    "with forced elections": EVERYTHING._replace(generations_max=2),
    "with forced elections and retention": EVERYTHING._replace(generations_max=2, retention=True),
    "in whole conversations": EVERYTHING._replace(coarse=True, consumer=True),
}
