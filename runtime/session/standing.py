"""What a session is at one moment: everything that a fork takes along."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from runtime.records import Float32
from runtime.session.hold import Hold
from runtime.session.manifest import Manifest
from runtime.session.messages import Said
from runtime.session.path import Path
from runtime.session.seam import Seam
from runtime.session.snapshot import Generation
from runtime.session.status import (
    Divergence,
)

if TYPE_CHECKING:
    from runtime.api.language_model import LanguageModel


@dataclass(slots=True)
class Standing:
    """Tokens, their pin, and what is known of how they came.

    Attributes:
        manifest: What they were made with.
        path: The tokens.
        hold: Keeps their KV in memory.
        seam: Makes ids of texts.
        said: The messages that were taken last.
        divergence: Where the last prefix could not take over what was there.
        generation: The last answer, as long as its tokens, or the first of them, end the path.
        row: What follows: the version of `path` that it belongs to, and log-probabilities ``(vocab,)``.
    """

    manifest: Manifest
    path: Path
    hold: Hold
    seam: Seam
    said: Said | None = None
    divergence: Divergence | None = None
    generation: Generation | None = None
    row: tuple[int, Float32] | None = None

    @classmethod
    def empty(cls, model: LanguageModel, manifest: Manifest) -> Standing:
        """That of a new session."""
        return cls(manifest, Path(), Hold(model, manifest.stack), Seam(model))

    def fork(self) -> Standing:
        """The same, apart from here on."""
        return replace(self, path=self.path.copy(), hold=self.hold.shared(), row=None)
