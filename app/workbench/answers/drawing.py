"""The workbench's members about draws (`ui.DrawingUses`): how a token was drawn, other ways on, what would follow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from app.workbench.answers.continuations import Fans
from app.workbench.answers.drawings import Drawn
from app.workbench.sessions.open_sessions import Sessions
from ui import BeamRules, ColumnKind, Drawing


class DrawingMembers:
    """See `ui.DrawingUses`."""

    _sessions: Sessions
    _drawn: Drawn
    _fans: Fans

    async def drawing(self, session_id: int, node_id: int, index: int) -> Drawing | None:
        """How a token was drawn; asks no model."""
        await self._sessions.read_whole(session_id, node_id)
        return await self._drawn.drawing(session_id, node_id, index)

    async def continue_many(self, session_id: int, node_id: int, index: int | None, n: int) -> None:
        """Draws several continuations of one place."""
        await self._sessions.read_whole(session_id, node_id)
        await self._fans.run(session_id, node_id, index, ColumnKind.DRAWS, n)

    async def beams(self, session_id: int, node_id: int, index: int | None, width: int, rules: BeamRules | None = None) -> None:
        """The likeliest continuations that a beam search finds."""
        await self._sessions.read_whole(session_id, node_id)
        await self._fans.run(session_id, node_id, index, ColumnKind.BEAMS, width, rules)

    async def whole_row(self, session_id: int, node_id: int, index: int) -> npt.NDArray[np.float32]:
        """Everything the model might have said before a token."""
        await self._sessions.read_whole(session_id, node_id)
        return await self._drawn.whole_row(session_id, node_id, index)

    async def preview(self, session_id: int, node_id: int, index: int, token_id: int, most: int) -> Sequence[bytes]:
        """The likeliest words after another token; nothing is saved."""
        await self._sessions.read_whole(session_id, node_id)
        return await self._drawn.preview(session_id, node_id, index, token_id, most)
