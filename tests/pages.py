"""The pages of the documentation and the examples in them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = {  # the README first; names relative to the root
    path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
}


def blocks(text: str, *languages: str) -> list[str]:
    """The fenced blocks of a page in some languages, in order."""
    return re.findall(rf"^```(?:{'|'.join(languages)})\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def shell_commands(*blocks: str) -> list[str]:
    """The commands of shell blocks, in order; a here-document belongs to its command."""
    found = re.finditer(r"^.*<<'(\w+)'\n(?:.*\n)*?\1\n|^.+\n", "".join(blocks), re.MULTILINE)
    return [command[0].rstrip("\n") for command in found]
