"""The rules of in-sync sets as switches. All on is Sexton; a test turns one off and must find what it protects from."""

from __future__ import annotations

from typing import NamedTuple


class Rules(NamedTuple):
    joining_is_counted: bool = True
    """Off: a replica that is to join counts only when the leader has seen that it has joined."""
    leaving_is_counted: bool = True
    """Off: a replica that is to leave counts no more once the leader has asked."""
    unknown_outcome_counts: bool = True
    """Off: an attempt that is refused ends a change of which an earlier attempt may have been carried out."""
    unknown_outcome_is_withdrawn: bool = True
    """Off: such a change is asked for again for ever, whatever became of the processes that it names."""
    progress_of_incarnation: bool = True
    """Off: what a broker held of its former log counts for its new one."""
    join_names_who_caught_up: bool = True
    """Off: a change that is asked for again names the processes that are registered by then."""
    join_names_process: bool = True
    """Off: followers are named by number alone."""
    fetch_names_log: bool = True
    """Off: a fetch counts whichever log of that broker it speaks of."""
    uncertain_leaves: bool = True
    """Off: a replica that may have lost its last records stays in sync over a restart."""
    hands_over_to_the_living: bool = True
    """Off: a broker that stops leaves its place to anyone whose lease has not run out."""
    needed_is_not_fenced: bool = True
    """Off: a broker that has stopped is fenced at once, whoever else is there."""
    partition_epoch_compared: bool = True
    """Off: the metastore carries changes out that are based on an old row."""


SEXTON = Rules()
