"""`BlockOptions`: the block file of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from runtime.errors import InvalidRequestError, OptionError
from runtime.options.checking import check_fields, nearest, option, shown, text, whole


def _dotted(value: Any) -> str | None:
    sound = isinstance(value, str) and all(value.partition(":"))
    return None if sound else "{option} is 'package.module:name', not {value}"


@dataclass(frozen=True, slots=True)
class BlockOptions:
    """The store of a model's blocks, described by values that cross the pipe: the engine process opens it on its block thread.

    Attributes:
        factory: ``"package.module:name"`` of a function that opens a `BlockStore`, as ``factory(path, budget=budget)``.
        path: The path of the block file.
        budget: The most bytes of all blocks.
    """

    factory: str = field(metadata={"fault": _dotted})
    path: str = field(metadata={"fault": text("the path of a file, as text")})
    budget: int = option(4 << 30, whole(1))  # bytes

    @classmethod
    def from_given(cls, given: object) -> Self:
        """Unchecked options from an object of this class, or from a mapping of its fields.

        Raises:
            InvalidRequestError: `given` has another type, or unknown or missing names.
        """
        if isinstance(given, cls):
            return given
        if isinstance(given, Mapping):
            known = set(cls.__slots__)
            for name in given:
                if name not in known:
                    raise InvalidRequestError(f"unknown option {shown(name)} of blocks: {nearest(name, known)}")
            if not {"factory", "path"} <= set(given):
                raise InvalidRequestError("blocks needs a factory ('package.module:name') and a path")
            return cls(**given)
        words = "{option} is BlockOptions(factory, path, budget) or a mapping of them, not {value}"
        raise OptionError(words, "blocks", shown(given))

    def check(self) -> Self:
        """Checks the options and returns them.

        Raises:
            InvalidRequestError: A value out of range; the message names it.
        """
        check_fields(self, "blocks: ")
        return self
