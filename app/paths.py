"""Where the data of a person lives: sessions, settings, logs. Models have a folder of their own (`runtime.models_dir`)."""

from __future__ import annotations

from pathlib import Path

import platformdirs
from msgspec import Struct


class DataFolder(Struct, frozen=True):
    """The files of one data folder; it is made, for its owner alone, when it is first written to."""

    root: Path

    @classmethod
    def default(cls) -> DataFolder:
        """Under the user's data folder."""
        return cls(Path(platformdirs.user_data_dir("elsewise")))

    @property
    def sessions(self) -> Path:
        """The sessions database."""
        return self.root / "sessions.db"

    @property
    def blocks(self) -> Path:
        """The engine's KV blocks: a cache, opened by the engine of the holder of the folder's lock."""
        return self.root / "blocks.db"

    @property
    def engine_log(self) -> Path:
        """What the engine process wrote to its stderr."""
        return self.root / "engine.log"

    @property
    def log(self) -> Path:
        """What the window logged."""
        return self.root / "elsewise.log"

    @property
    def focus(self) -> Path:
        """Touched by a second window, watched by the first."""
        return self.root / "focus"

    def make(self) -> None:
        """Makes the folder.

        Raises:
            OSError: It cannot be made.
        """
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
