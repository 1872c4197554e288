"""Many at once: continuations of one point, different prompts in one batch, beam search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from runtime.adapters.uses import Adapters
from runtime.beams import BeamOptions, Hypothesis, OnStep
from runtime.branches import Branches
from runtime.info import OnProgress
from runtime.options.generation import GenerationOptions
from runtime.records import TokenRecord, TokenRun


class BranchingMembers(Protocol):
    """Members of `LanguageModel` that go on from one place, or from several, in one batch.

    Each step is one forward for all that run, up to `max_batch_rows` of them. A branch ends on its own, by a record with a
    `finish_reason`. One that fails ends alone: what it yielded stays valid, the others run to their end, and then its
    error is raised; a note on it has the numbers of all that failed (the last record of a branch that failed has no
    `finish_reason`). Closing a generator early, best with `contextlib.aclosing`, stops all; `Branches.drop` stops one.

    What a stream says beside others is what it says alone within the rounding of float32. Of a model that computes in 16 bits,
    or with weights in bfloat16, int8 or int4, it can be something else under the same seed: `ModelInfo.warnings` says so.
    """

    def continue_many(
        self, ids: Sequence[int], n: int, options: GenerationOptions | None = None, *, on_progress: OnProgress | None = None
    ) -> Branches[TokenRecord]:
        """Draws `n` continuations of one point, ``(branch, record)`` as they come; called without await.

        The prefix is computed once and held once: tokens computed are those of the prefix that the cache does not have,
        and n times the new ones. Branches have one seed and the numbers from ``options.branch`` on (0 unless it says
        otherwise); branch k says what ``generate`` says with this seed and ``branch=k`` (see above).

        Args:
            ids: The point: all tokens up to it.
            n: Branches, 1 to 1,024.
            options: Of every branch; greedy ones all say the same, and share their rows.
            on_progress: Hears how far the prefix is.

        Raises:
            UnsupportedFeatureError: `speculative` with more than one branch.
        """

    def continue_many_runs(
        self, ids: Sequence[int], n: int, options: GenerationOptions | None = None, *, on_progress: OnProgress | None = None
    ) -> Branches[TokenRun]:
        """`continue_many` in chunks: for each branch whatever has arrived since the caller last asked."""

    def generate_many(
        self,
        prompts: Sequence[str | Sequence[int]],
        options: GenerationOptions | Sequence[GenerationOptions | None] | None = None,
    ) -> Branches[TokenRecord]:
        """Answers different prompts in one batch, ``(prompt's number, record)`` as they come; called without await.

        Row i says what ``generate(prompts[i], options of i)`` says (see above). Prompts are checked before any is computed; an
        error names the number. As many as make a batch (`max_batch_rows`) run at a time, the next begins when one has ended.

        Args:
            prompts: Token ids, or raw text, which is tokenised as it is: no template, no roles.
            options: For all, or one for each prompt: its own grammar, stops, seed. Without a seed each gets its own.
        """

    def generate_many_runs(
        self,
        prompts: Sequence[str | Sequence[int]],
        options: GenerationOptions | Sequence[GenerationOptions | None] | None = None,
    ) -> Branches[TokenRun]:
        """`generate_many` in chunks."""

    async def beam_generate(
        self,
        ids: Sequence[int],
        options: BeamOptions | None = None,
        *,
        adapters: Adapters = None,
        on_progress: OnProgress | None = None,
        on_step: OnStep | None = None,
    ) -> list[Hypothesis]:
        """The best continuations that a beam search finds, best first; deterministic, the model's raw distribution.

        It equals transformers' beam search with the same options. A step is one forward for all beams; tokens computed
        are those of the prefix that the cache does not have, and at most `width` for each step but the last.

        Args:
            ids: What is continued.
            options: Width, length, when to end.
            adapters: Loaded ones, in order; () is the base, None the model's stack.
            on_progress: Hears how far the prefix is.
            on_step: Hears the beams after each step, on the caller's loop, in order.
        """
