"""What all members of a session share: its state, the way in, its limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from runtime.errors import ContextOverflowError
from runtime.info import ModelInfo, OnProgress
from runtime.session.config import SessionConfig
from runtime.session.guard import Guard
from runtime.session.manifest import Manifest
from runtime.session.messages import Said
from runtime.session.path import Path
from runtime.session.snapshot import Generation
from runtime.session.standing import Standing
from runtime.session.work import Work, fill

if TYPE_CHECKING:
    from runtime.api.language_model import LanguageModel


class SessionCore:
    """State of a session.

    Args:
        model: Where its KV is.
        config: How it works.
        manifest_now: What holds of the model at this moment.
        standing: Of the session that it is forked from; None: it is empty.
    """

    def __init__(
        self,
        model: LanguageModel,
        config: SessionConfig,
        manifest_now: Callable[[], Manifest],
        standing: Standing | None = None,
    ) -> None:
        self.model = model
        self.config = config
        self._manifest_now = manifest_now
        self._info: ModelInfo | None = None  # for which the manifest was found right
        self._standing = standing or Standing.empty(model, manifest_now())
        self._guard = Guard(self._let_go)

    @property
    def manifest(self) -> Manifest:
        """What its tokens were made with."""
        return self._standing.manifest

    @property
    def ids(self) -> list[int]:
        """The tokens; readable after the end too."""
        return list(self._path.ids)

    def __len__(self) -> int:
        return len(self._path)

    @property
    def limit(self) -> int:
        """Tokens that it may hold."""
        return self.config.limit or self.model.info.context_length

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._guard.closed

    @property
    def _path(self) -> Path:
        return self._standing.path

    @contextmanager
    def _entered(self, what: str) -> Iterator[None]:
        with self._guard.entered(what):
            info = self.model.info
            if info is not self._info:  # news of the model: perhaps another stack of adapters
                self.manifest.require(self._manifest_now())
                self._info = info
            yield

    def take(self, path: Path, said: Said | None, generation: Generation | None) -> None:
        """What a snapshot holds; only for whoever opens the session, before anybody uses it.

        Raises:
            ContextOverflowError: It is longer than the session may be; the session is closed.
        """
        if len(path) > self.limit:
            self._guard.close()
            raise ContextOverflowError("resume", 0, len(path), self.limit)
        self._standing.path, self._standing.said, self._standing.generation = path, said, generation
        self._keep()

    def _let_go(self) -> None:
        self._standing.hold.release()
        self._standing.row = None

    def _keep(self) -> None:
        """The pin follows to where the session ends now."""
        if not self.closed:
            self._standing.hold.move(self._path.ids)

    async def _fill(self, ids: Sequence[int], start: int, on_progress: OnProgress | None, *, scored: bool = True) -> Work:
        """See `fill`."""
        top_k, adapters = self.config.top_k if scored else None, self.manifest.stack
        return await fill(self.model, ids, start, top_k=top_k, adapters=adapters, on_progress=on_progress)

    def _check_room(self, stage: str, resident: int, additional: int) -> None:
        if resident + additional > self.limit:
            raise ContextOverflowError(stage, resident, additional, self.limit)
