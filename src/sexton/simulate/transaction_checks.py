"""Rule 8, read from the logs themselves as they are committed: a transaction is all there or not at all.

Every batch and every marker passes by here once, in the order of its partition. When a marker ends what its producer
has open in a partition, the transactions whose records those are have met their fate there: it must be one that their
client can have wanted, and the same in every partition.
"""

from __future__ import annotations

from collections.abc import Iterable

from sexton.records.batch import Batch, ControlType
from sexton.simulate.errors import SimulationFailure
from sexton.simulate.history import History, Outcome, Transaction, identity
from sexton.types import TopicPartition


class TransactionJudge:
    def __init__(self, history: History) -> None:
        self._history = history
        self._open: dict[TopicPartition, dict[int, list[Transaction]]] = {}
        self.ended_count = 0

    def committed(self, place: TopicPartition, batch: Batch) -> None:
        """The next batch of a partition is committed."""
        if not batch.is_transactional:
            return
        in_place = self._open.setdefault(place, {})
        if not batch.is_control:
            self._note_open(in_place, batch)
        elif batch.control_type is not ControlType.UNKNOWN:
            for transaction in in_place.pop(batch.producer_id, []):
                if any(write.place == place and self._history.is_torn(write) for write in transaction.writes):
                    continue  # its end may have been lost here, and this be the next one's
                self._ended(place, transaction, batch.control_type is ControlType.COMMIT, batch.base_offset)

    def _ended(self, place: TopicPartition, transaction: Transaction, is_commit: bool, offset: int) -> None:
        self.ended_count += 1
        where = f"the marker at {place[0]}-{place[1]}@{offset}"
        if is_commit and not transaction.may_be_committed:
            asked = "was aborted" if transaction.is_commit_asked else "was never asked to commit"
            raise SimulationFailure("rule 8", f"{where} commits {transaction}, which {asked}")
        if not is_commit and transaction.outcome is Outcome.OK:
            raise SimulationFailure("rule 8", f"{where} aborts {transaction}, whose commit was acknowledged")
        others = [other for other, fate in transaction.fates.items() if fate != is_commit]
        if others:
            raise SimulationFailure(
                "rule 8",
                f"{where} {'commits' if is_commit else 'aborts'} {transaction}, but not so in "
                f"{others[0][0]}-{others[0][1]}: it is torn",
            )
        transaction.fates[place] = is_commit

    def begin_anew(self, place: TopicPartition, batches: Iterable[Batch]) -> None:
        """A partition has lost its end: these batches are left. What ended among them has been judged."""
        in_place: dict[int, list[Transaction]] = {}
        for batch in batches:
            if batch.is_transactional and batch.is_control:
                in_place.pop(batch.producer_id, None)
            elif batch.is_transactional:
                self._note_open(in_place, batch)
        self._open[place] = in_place

    def _note_open(self, in_place: dict[int, list[Transaction]], batch: Batch) -> None:
        known = in_place.setdefault(batch.producer_id, [])
        for record in batch.records:
            write = self._history.written.get(identity(record) or b"")
            if write is not None and write.transaction is not None and write.transaction not in known[-1:]:
                known.append(write.transaction)

    def check_whole(self) -> None:
        """Called when no transaction is open any more: checks that each is whole."""
        for transaction in self._history.transactions:
            places = {write.place for write in transaction.writes}
            gone = {write.place for write in transaction.writes if self._history.is_torn(write)}
            gone |= {place for place in places if self._history.is_gone(place)}
            if any(transaction.fates.values()):
                lacking = [place for place in sorted(places - gone) if not transaction.fates.get(place)]
                if lacking:
                    raise SimulationFailure(
                        "rule 8", f"{transaction} is committed, but not in {lacking[0][0]}-{lacking[0][1]}: it is torn"
                    )
            elif transaction.outcome is Outcome.OK and places - gone:
                raise SimulationFailure("rule 8", f"the commit of {transaction} was acknowledged, and it is not there")

    def offsets_possible(self, transactional_id: str) -> set[int]:
        """What the group of a transactional id may stand at: -1 is nothing at all. Transactions that count follow each
        other as they were begun, whichever instance began them: one that was started early and stood still may be the
        last to become the producer."""
        possible = {-1}
        for each in sorted(self._history.transactions, key=lambda each: each.number):
            if each.transactional_id != transactional_id or each.offset is None:
                continue
            if any(each.fates.values()) or each.outcome is Outcome.OK:
                possible = {each.offset}
            elif each.may_be_committed and not each.fates:
                possible.add(each.offset)  # it wrote nothing else that would tell
        return possible
