"""Where a ``read_committed`` consumer stops."""

from __future__ import annotations

from sexton.compaction.survey import LogSurvey
from sexton.compaction.transactions import NO_OFFSET


def last_stable_offset(survey: LogSurvey, high_watermark: int | None) -> int:
    """Kafka's: below the high watermark and below every transaction that is open *or whose marker is not below it*.

    Such a marker may still be truncated, so its transaction is not decided yet. A copy without checkpoints has no high
    watermark; its end then counts.
    """
    end = survey.log_end_offset if high_watermark is None else min(high_watermark, survey.log_end_offset)
    markers = survey.events.markers
    undecided = (markers["offset"] >= end) & (markers["first_data_offset"] != NO_OFFSET)
    begun: list[int] = markers["first_data_offset"][undecided].tolist()
    return min([survey.last_stable_offset(end), *begun])
