"""Texts as vectors: the group of members of `LanguageModel`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from runtime.adapters.uses import Adapters
from runtime.info import OnProgress
from runtime.numerics.pooling import Pooling
from runtime.records import Float32


class VectorMembers(Protocol):
    """`embed` and its blocking twin."""

    async def embed(
        self,
        texts: Sequence[str],
        pooling: Pooling = "last",
        *,
        adapters: Adapters = None,
        on_progress: OnProgress | None = None,
    ) -> Float32:
        """One vector per text, made of the model's last hidden states (after the final norm).

        Texts are tokenised as `tokenize` does and do not see each other: one has the same vector alone and among thousands,
        but for the rounding of the last bits. Equal texts are computed once. Nothing stays in the cache. The work is done
        in slices between the steps of whatever else runs, and a cancelled call ends between two of them.

        Args:
            texts: Any number of them, at least one.
            pooling: "last" (the last token's state, the one that has seen everything), "mean", "max" (each number's largest
                over the text) or "cls" (the first token's; of use only where a model was trained for it).
            adapters: Loaded ones, in order; () is the base, None the model's stack.
            on_progress: Hears how many tokens of all texts are done after each slice, on the caller's loop; `computed` counts
                what was pushed through the model, padding too.

        Returns:
            ``(len(texts), hidden_size) float32``, each row of length 1, in the order of the texts.

        Raises:
            InvalidRequestError: No texts, an empty one (`texts[3]`), something that is no text, an unknown pooling.
            ContextOverflowError: A text longer than the context; its `stage` is the text's place, "texts[3]".
            MemoryBudgetError: The KV of one text does not fit into the budget while it is worked on.
            AdapterError: An adapter that is unknown, or not loaded.
            UnsupportedFeatureError: The backend gives no hidden states of this architecture, or an activated adapter begins in
                the middle of a text.
            NonFiniteLogitsError: The model answered NaN or infinity.
        """

    def embed_sync(self, texts: Sequence[str], pooling: Pooling = "last", *, adapters: Adapters = None) -> Float32:
        """`embed`, blocking."""
