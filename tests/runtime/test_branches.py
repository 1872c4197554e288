"""Errors of one prompt among many."""

from __future__ import annotations

import asyncio

import pytest

from runtime import GenerationOptions, OptionError, load


def test_the_error_of_one_prompt_keeps_its_fields() -> None:
    async def main() -> None:
        with load("x", backend="fake") as model:
            async for _ in model.generate_many([[1], [2]], [GenerationOptions(), GenerationOptions(max_tokens=0)]):
                pass

    with pytest.raises(OptionError, match="prompt 1: max_tokens") as caught:
        asyncio.run(main())
    assert (caught.value.option, caught.value.value) == ("max_tokens", "0")
