"""What goes into the next object, and when it is enough.

A gather takes the batches of all cloud partitions that a broker leads, in the order in which they come. A batch is
never split. One that is larger than a gather should be travels alone.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from sexton.cloud.log import CloudLog, Piece
from sexton.ports.cloud import Owner
from sexton.records.objects import FRONT_BYTES, MAGIC, Level, ObjectEncoder, Writer
from sexton.types import PartitionId


@dataclass(frozen=True, slots=True)
class GatherLimits:
    linger_ms: int
    """`cloud.linger.ms`."""
    bytes_max: int
    """`cloud.l0.bytes`."""
    partitions_max: int
    """`cloud.l0.partitions.max`."""
    is_eager: bool = False
    """`cloud.eager`: a batch that comes while nothing is on its way does not linger."""


class Gather:
    def __init__(self, limits: GatherLimits) -> None:
        self._limits = limits
        self._pieces: dict[PartitionId, Piece] = {}
        self.size_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def has_room(self, size_bytes: int) -> bool:
        return not self._pieces or self.size_bytes + size_bytes <= self._limits.bytes_max

    def add(self, piece: Piece, size_bytes: int) -> None:
        """A batch of this size has gone into the piece."""
        assert self._pieces.setdefault(piece.key, piece) is piece, f"C5: {piece.log!r} has two pieces in one gather"
        self.size_bytes += size_bytes

    def forget(self, log: CloudLog) -> int:
        """Leaves out what a log has put here. Returns how many bytes that was."""
        piece = self._pieces.get(log.key)
        if piece is None or piece.log is not log:
            return 0
        del self._pieces[log.key]
        self.size_bytes -= piece.size_bytes
        return piece.size_bytes

    @property
    def is_full(self) -> bool:
        return self.size_bytes >= self._limits.bytes_max or len(self._pieces) >= self._limits.partitions_max

    def seal(self) -> list[Piece]:
        """By partition, so that an object's order does not depend on who came first."""
        pieces = [self._pieces[key] for key in sorted(self._pieces)]
        for piece in pieces:
            assert piece.log.seal() is piece, f"C5: {piece.log!r} grows elsewhere"
        self._pieces, self.size_bytes = {}, 0
        return pieces


def encode(pieces: list[Piece], cluster_id: uuid.UUID, owner: Owner) -> tuple[bytearray, list[int]]:
    """The object that has these pieces as its runs, and where each of them lies. The bytes must not change from now on:
    a request that was given up may still be reading them."""
    encoder = ObjectEncoder(Level.L0, cluster_id, Writer.broker(int(owner.id), owner.epoch))
    out = bytearray(FRONT_BYTES + sum(piece.size_bytes for piece in pieces))
    out[:FRONT_BYTES] = MAGIC
    at, positions = FRONT_BYTES, []
    view = memoryview(out)
    for piece in pieces:
        positions.append(at)
        for batch in piece.batches:
            view[at : at + len(batch)] = batch
            at += len(batch)
        encoder.begin_run(*piece.key, piece.base_offset, epoch=piece.log.leader_epoch)
        encoder.add(view[positions[-1] : at])
        run = encoder.end_run()
        assert (run.end_offset, run.size_bytes) == (piece.end_offset, piece.size_bytes), f"C5: {piece.log!r}: {run}"
    view.release()
    out += encoder.finish()
    return out, positions
