"""Batches that are written to a log on disk before anybody sees them."""

from __future__ import annotations

import abc
from collections.abc import Sequence

from ._maintenance import MaintainedLog
from ._prepare import Piece, prepare_staged
from .errors import AppendError, StorageError
from .file_range import FileRange, read_at
from .log import EpochEntry, Staged, StageSource


class StagingLog(MaintainedLog):
    """They stand behind the end of the last segment. Nothing else is written as long as they do."""

    _staged: tuple[Staged, Piece, list[EpochEntry]] | None

    @abc.abstractmethod
    def _undo(self, end: int, error: OSError) -> StorageError:
        """Bring the files back to the old end after a failed write."""

    @abc.abstractmethod
    def _enter(self, pieces: Sequence[Piece], epochs: Sequence[EpochEntry]) -> None:
        """Move the log end to the end of the last segment, over the pieces that stand there."""

    def stage(self, source: StageSource, *, may_skip: bool = False) -> Staged:
        self._check_writable()
        self._check_unstaged()
        end = self._log_end_offset
        try:
            with self._writing:
                return self._stage(source, may_skip)
        except OSError as error:
            raise self._undo(end, error) from error
        except StorageError:
            with self._device(f"cannot remove bad batches from {self.name}", half_done=True):
                self._segments[-1].drop_unseen()
            raise

    def _stage(self, source: StageSource, may_skip: bool) -> Staged:
        end = self._log_end_offset
        if not self._segments[-1].has_room(0, source.size, end, -1):
            self._roll(end)
        segment = self._segments[-1]
        position = segment.end.position
        source.copy_to(segment.fileno(), position)
        data = read_at(segment.fileno(), source.size, position)
        piece, epochs = prepare_staged(self.name, data, end, self._epochs.latest, may_skip=may_skip)
        if not segment.has_room(0, source.size, piece.batches[-1].last_offset, piece.max_timestamp):
            segment.drop_unseen()
            self._roll(end)
            segment, position = self._segments[-1], 0
            segment.write([data], 0)
        if piece.skips:
            self._mark_gaps()
        place = FileRange(segment.file, position, source.size)
        staged = Staged(piece.infos, place, end)
        self._staged = (staged, piece, epochs)
        return staged

    def publish(self, staged: Staged) -> None:
        self._check_writable()
        piece, epochs = self._take_staged(staged)
        try:
            with self._writing:
                self._segments[-1].added(piece.batches)
                self._enter([piece], epochs)
        except OSError as error:
            raise self._undo(staged.base_offset, error) from error
        self._tell_flusher()

    def discard(self, staged: Staged) -> None:
        self._check_writable()
        self._take_staged(staged)
        with self._device(f"cannot remove what was staged in {self.name}", half_done=True):
            self._segments[-1].drop_unseen()

    def _take_staged(self, staged: Staged) -> tuple[Piece, list[EpochEntry]]:
        if self._staged is None or self._staged[0] is not staged:
            raise AppendError(f"these batches are not what is staged in {self.name}: stage them again")
        _, piece, epochs = self._staged
        self._staged = None
        return piece, epochs

    def _drop_staged(self) -> None:
        if self._staged is not None:
            self._staged = None
            self._segments[-1].drop_unseen()

    def _check_unstaged(self) -> None:
        if self._staged is not None:
            raise AppendError(f"batches are staged in {self.name}: publish or discard them first")
