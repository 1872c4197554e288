"""Where the blocks of a model are kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from runtime.checking import nearest, whole
from runtime.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class BlockOptions:
    """Names only, so that it crosses the pipe: the store is opened in the engine process, on its block thread.

    Attributes:
        factory: ``"package.module:name"`` of what opens a `BlockStore`; called as ``factory(path, budget=budget)``.
        path: Of its file.
        budget: Bytes that it may hold.
    """

    factory: str
    path: str
    budget: int = 4 << 30

    @classmethod
    def from_given(cls, given: object) -> Self:
        """Checked, from an object of this class or a mapping with its names.

        Raises:
            InvalidRequestError: Something else; the name and the value are named.
        """
        if isinstance(given, cls):
            made = given
        elif isinstance(given, Mapping):
            known = set(cls.__slots__)
            for name in given:
                if name not in known:
                    raise InvalidRequestError(f"unknown option {name!r} of blocks: {nearest(str(name), known)}")
            values: dict[str, Any] = dict(given)
            if not {"factory", "path"} <= set(values):
                raise InvalidRequestError("blocks needs a factory ('package.module:name') and a path")
            made = cls(**values)
        else:
            raise InvalidRequestError(f"blocks is BlockOptions(factory, path, budget) or a mapping of them, not {given!r:.80}")
        if not isinstance(made.factory, str) or not all(made.factory.partition(":")):
            raise InvalidRequestError(f"blocks: factory is 'package.module:name', not {made.factory!r:.80}")
        if not isinstance(made.path, str) or not made.path.strip():
            raise InvalidRequestError(f"blocks: path is the path of a file, as text, not {made.path!r:.80}")
        if not whole(made.budget, 1):
            raise InvalidRequestError(f"blocks: budget must be a whole number of bytes above 0, not {made.budget!r}")
        return made
