"""Texts as vectors, over the pipe."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, cast

from runtime.adapters.uses import Adapters
from runtime.client.arguments import plain_adapters
from runtime.client.calls import Calls
from runtime.errors import InvalidRequestError
from runtime.info import ModelInfo, OnProgress
from runtime.numerics.pooling import Pooling, check_pooling, checked_texts
from runtime.records import Float32
from runtime.text.utf8 import clean_text
from runtime.wire.frames import MAX_PAYLOAD


class VectorCalls(ABC):
    """`embed` and its twin; see `runtime.members.vectors`."""

    _calls: Calls

    @property
    @abstractmethod
    def info(self) -> ModelInfo:
        """What is known of the model."""

    async def embed(
        self,
        texts: Sequence[str],
        pooling: Pooling = "last",
        *,
        adapters: Adapters = None,
        on_progress: OnProgress | None = None,
    ) -> Float32:
        arguments = self._embedding(texts, pooling, adapters)
        return cast("Float32", await self._calls.call("embed", on_progress=on_progress, **arguments))

    def embed_sync(self, texts: Sequence[str], pooling: Pooling = "last", *, adapters: Adapters = None) -> Float32:
        return cast("Float32", self._calls.call_sync("embed", **self._embedding(texts, pooling, adapters)))

    def _embedding(self, texts: Sequence[str], pooling: Pooling, adapters: Adapters) -> dict[str, Any]:
        listed = [clean_text(text) for text in checked_texts(texts)]
        row = self.info.hidden_size * 4
        if len(listed) * row >= MAX_PAYLOAD:
            raise InvalidRequestError(
                f"{len(listed):,} vectors take {len(listed) * row:,} bytes, more than the {MAX_PAYLOAD:,} that cross the pipe "
                f"at once; give {MAX_PAYLOAD // (2 * row):,} texts at a time"
            )
        return {"texts": listed, "pooling": check_pooling(pooling), "adapters": plain_adapters(adapters)}
