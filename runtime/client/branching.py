"""Many at once, over the pipe: `continue_many`, `generate_many`, `beam_generate`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from runtime.adapters.uses import Adapters
from runtime.beams import BeamOptions, Hypothesis, OnStep, given_beams
from runtime.branches import Branches, BranchRecords, Options, Prompts, check_prompts
from runtime.client.arguments import plain_adapters, plain_ids
from runtime.client.calls import Calls
from runtime.info import OnProgress
from runtime.options.generation import GenerationOptions, given
from runtime.records import TokenRun
from runtime.text.utf8 import clean_text


class BranchingMembers(BranchRecords):
    """See `runtime.members.branching`."""

    _calls: Calls

    def continue_many_runs(
        self, ids: Sequence[int], n: int, options: GenerationOptions | None = None, *, on_progress: OnProgress | None = None
    ) -> Branches[TokenRun]:
        def arguments() -> dict[str, Any]:
            return {"ids": plain_ids(ids), "n": n, "options": options and given(options)}

        return self._calls.branches("continue_many_runs", arguments, on_progress=on_progress)

    def generate_many_runs(self, prompts: Prompts, options: Options = None) -> Branches[TokenRun]:
        def arguments() -> dict[str, Any]:
            plain = [clean_text(prompt) if isinstance(prompt, str) else plain_ids(prompt) for prompt in check_prompts(prompts)]
            one = options is None or isinstance(options, GenerationOptions)
            return {"prompts": plain, "options": options if one else list(cast("Sequence[Any]", options))}

        return self._calls.branches("generate_many_runs", arguments)

    async def beam_generate(
        self,
        ids: Sequence[int],
        options: BeamOptions | None = None,
        *,
        adapters: Adapters = None,
        on_progress: OnProgress | None = None,
        on_step: OnStep | None = None,
    ) -> list[Hypothesis]:
        answer = await self._calls.call(
            "beam_generate",
            on_progress=on_progress,
            on_step=on_step,
            ids=plain_ids(ids),
            options=options and given_beams(options),
            adapters=plain_adapters(adapters),
            watched=on_step is not None,
        )
        return cast("list[Hypothesis]", answer)
