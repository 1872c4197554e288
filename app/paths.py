"""The data folder: sessions, settings, logs. Models have a folder of their own (`runtime.models_dir`)."""

from __future__ import annotations

from pathlib import Path

import platformdirs
from msgspec import Struct


class DataFolder(Struct, frozen=True):
    """The files of a data folder, which is created at the first write, for its owner only."""

    root: Path

    @classmethod
    def default(cls) -> DataFolder:
        """The folder "elsewise" in the user's data folder."""
        return cls(Path(platformdirs.user_data_dir("elsewise")))

    @property
    def sessions(self) -> Path:
        return self.root / "sessions.db"

    @property
    def blocks(self) -> Path:
        """The block file, opened only by the engine of the process that holds the folder's lock."""
        return self.root / "blocks.db"

    @property
    def engine_log(self) -> Path:
        """The stderr of the engine process."""
        return self.root / "engine.log"

    @property
    def log(self) -> Path:
        return self.root / "elsewise.log"

    @property
    def focus(self) -> Path:
        """Touched by a second window, watched by the first."""
        return self.root / "focus"

    def make(self) -> None:
        """Creates the folder.

        Raises:
            OSError: It cannot be created.
        """
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
