"""Checkpoints on disk: written whole or not at all, the newest two kept, and nothing read that is not what was written.

One is a folder ``checkpoint-UPDATE`` of two files. ``arrays.npy`` holds one array after another as ``numpy.save`` writes them;
``manifest.json`` says everything else, with the length and SHA-256 of the arrays and the SHA-256 of itself. It is made under
a hidden name, brought to the disk, renamed, and the folder's entry brought to the disk: a reader finds it whole or not.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from phalanx_coordinator.checkpoints import files as checkpoint_files
from phalanx_coordinator.checkpoints.checkpoint import Checkpoint
from phalanx_coordinator.checkpoints.files import ARRAYS, MANIFEST
from phalanx_proto.errors import CheckpointRefused, CorruptData, Unavailable

FORMAT = 1
KEPT = 2
"""Checkpoints that are kept: the second one is for the day on which the first cannot be read."""
_NAME = re.compile(r"checkpoint-(\d{1,19})")
_UNFINISHED = re.compile(r"\.checkpoint-\d{1,19}\.(new|old)")


class CheckpointStore:
    """The checkpoints of one job, in a folder of their own. Its calls block: make them off the loop."""

    def __init__(self, path: Path, resumed: int | None = None) -> None:
        """``resumed`` is the update of the checkpoint that the job goes on from: it is kept until two newer ones are there."""
        self.path = path
        self.notes: tuple[str, ...] = ()
        """What ``newest`` found damaged."""
        self._good = [] if resumed is None else [f"checkpoint-{resumed}"]
        """Names of those that were written or read here, the newest last."""

    def save(self, checkpoint: Checkpoint) -> None:
        """Write one, then let go of all but the newest two; raises ``Unavailable`` and leaves what was there."""
        name = f"checkpoint-{checkpoint.update}"
        temporary = self.path / f".{name}.new"
        self._good = self._good or self._names()[-1:]
        try:
            self._make_folder()
            self._clear()
            os.mkdir(temporary, 0o700)
            self._fill(temporary, checkpoint)
            self._publish(temporary, name)
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            last = f"the last one, {self._good[-1]}, is as it was" if self._good else "there is none before it"
            raise Unavailable(
                f"the checkpoint of update {checkpoint.update} cannot be written: {error.strerror or error}; {last}: make room "
                "for three of them, then resume the job",
                update=checkpoint.update,
            ) from None
        self._good = [*(good for good in self._good if good != name), name][-KEPT:]
        self._prune()

    def _make_folder(self) -> None:
        if not self.path.is_dir():
            os.mkdir(self.path, 0o700)
            checkpoint_files.sync_folder(self.path.parent)

    def _clear(self) -> None:
        """Remove what a killed process left unfinished."""
        for name in os.listdir(self.path):
            if _UNFINISHED.fullmatch(name):
                shutil.rmtree(self.path / name)

    @staticmethod
    def _fill(folder: Path, checkpoint: Checkpoint) -> None:
        written = checkpoint_files.write_arrays(folder / ARRAYS, checkpoint.arrays)
        document = {**checkpoint.to_document(), "arrays": written}
        checkpoint_files.write_file(folder / MANIFEST, [checkpoint_files.sealed(document, FORMAT)])
        checkpoint_files.sync_folder(folder)

    def _publish(self, temporary: Path, name: str) -> None:
        target = self.path / name
        if os.path.lexists(target):  # damaged, or the run went back behind it
            os.rename(target, self.path / f".{name}.old")
        os.rename(temporary, target)
        checkpoint_files.sync_folder(self.path)

    def _prune(self) -> None:
        """Remove older ones; hidden first, so that none is ever seen half removed."""
        with contextlib.suppress(OSError):  # what stays is removed the next time
            for name in self._names():
                if name not in self._good:
                    os.rename(self.path / name, self.path / f".{name}.old")
            self._clear()

    def newest(self) -> Checkpoint | None:
        """The newest sound one, or None. What is damaged is passed over, with a note here and in the checkpoint.

        Raises ``CheckpointRefused`` for one of a newer format, ``Unavailable`` for one that must not be read.
        """
        self.notes = ()
        for name in reversed(self._names()):
            try:
                found = self._read(name)
            except CorruptData as error:
                self.notes += (f"{name} is damaged and was not used: {error.message}",)
                continue
            self._good = [name]
            return replace(found, notes=self.notes)
        return None

    def _names(self) -> list[str]:
        """Names of what looks like a checkpoint, the newest last."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            found = [match for match in map(_NAME.fullmatch, os.listdir(self.path)) if match]
            return [match[0] for match in sorted(found, key=lambda match: int(match[1]))]
        return []

    def _read(self, name: str) -> Checkpoint:
        folder = self.path / name
        try:
            document = self._manifest(folder, name)
            arrays: dict[str, NDArray[Any]] = checkpoint_files.read_arrays(folder / ARRAYS, document.get("arrays"))
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise CorruptData(f"{Path(str(error.filename)).name} is not there") from None
        except PermissionError as error:
            raise Unavailable(f"{name} cannot be read: {error.strerror}; see who owns it") from None
        except OSError as error:  # a disk that gives back no more than an error
            raise CorruptData(f"it cannot be read: {error.strerror or error}") from None
        found = Checkpoint.from_document(document, arrays)
        if name != f"checkpoint-{found.update}":
            raise CorruptData(f"it is the checkpoint of update {found.update} under another name")
        return found

    @staticmethod
    def _manifest(folder: Path, name: str) -> Mapping[str, Any]:
        number, document = checkpoint_files.unsealed((folder / MANIFEST).read_bytes())
        if number != FORMAT:
            raise CheckpointRefused(
                f"{name} has the format {number}, and this version of Phalanx reads {FORMAT}; resume with the "
                "version that wrote it",
                field="format", wanted=FORMAT, found=number,
            )  # fmt: skip
        return document
