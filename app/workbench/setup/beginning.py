"""What stands before every turn of a path: its root, with system prompt, tools and pinned files. Never rewritten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from storage import NodeRow
from ui import TextFile

TOOLS, FILES, LEFT_OUT, AS_TEXT = "tools", "files", "left_out", "as_text"  # in a root's stats


@dataclass(frozen=True, slots=True)
class Beginning:
    """Two roots that say the same are one beginning."""

    system: str = ""
    tools: str = ""  # JSON
    files: tuple[TextFile, ...] = ()

    @classmethod
    def of(cls, root: NodeRow) -> Beginning:
        """What a stored root says; what cannot be read of it is left out."""
        tools, files = root.stats.get(TOOLS, ""), root.stats.get(FILES, ())
        return cls(root.text, tools if isinstance(tools, str) else "", tuple(_files(files)))

    @property
    def stats(self) -> dict[str, Any]:
        """What the root keeps beside its text."""
        kept: dict[str, Any] = {TOOLS: self.tools} if self.tools.strip() else {}
        return kept | ({FILES: [[file.name, file.text] for file in self.files]} if self.files else {})

    @property
    def content(self) -> str:
        """The system message: files stand behind the prompt."""
        return "\n\n".join([self.system] * bool(self.system) + [file_block(file) for file in self.files])


def file_block(file: TextFile) -> str:
    """A file as a model reads it."""
    return f"[{file.name}]\n{file.text.rstrip()}\n[end of {file.name}]"


def left_out(stats: Mapping[str, Any]) -> int:
    """How many turns a root left out."""
    count = stats.get(LEFT_OUT, 0)
    return count if isinstance(count, int) else 0


def as_text(stats: Mapping[str, Any]) -> bool:
    """Whether what follows a root is another path's text, without its tokens."""
    return bool(stats.get(AS_TEXT))


def _files(stored: object) -> Sequence[TextFile]:
    if not isinstance(stored, Sequence) or isinstance(stored, str):
        return ()
    return [TextFile(*entry) for entry in stored if isinstance(entry, list) and [type(x) for x in entry] == [str, str]]
