"""A message with the files that go with it."""

from __future__ import annotations

from collections.abc import Sequence

from ui.port import TextFile


def with_files(text: str, files: Sequence[TextFile]) -> str:
    """The message as it is sent: the files stand before what was written."""
    blocks = [f"[{file.name}]\n{file.text.rstrip()}\n[end of {file.name}]" for file in files]
    return "\n\n".join([*blocks, text]) if blocks else text
