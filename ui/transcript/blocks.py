"""Cuts markdown into stretches that can be rendered one by one, so that what is finished is never rendered again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})[ \t]*([^`\n]*)")
_LIST_ITEM = re.compile(r" {0,3}(?:[-*+]|\d{1,9}[.)])(?:\s|$)")
_LONGEST = 6000  # characters of one stretch; a longer table or list is cut at a line, a longer line anywhere

_LONGEST_WORD = 1500  # Qt takes quadratic time to break a word over many lines


@dataclass(frozen=True, slots=True)
class Stretch:
    """Characters `start` to `stop` of the source. `code` is what a fence holds, None where it is markdown."""

    start: int
    stop: int
    code: str | None = None
    language: str = ""


def stretches(source: str, start: int = 0) -> Iterator[Stretch]:
    """The stretches from character `start` on, which must be where one begins.

    Cut are fenced code, and paragraphs at blank lines; a list with blank lines between its items stays whole.
    """
    begin = position = start
    in_list = blank = broken = False  # broken: the stretch ends inside a word
    while position < len(source):
        was_broken, broken = broken, False
        stop = min(_line_end(source, position), position + _LONGEST)
        if stop - position > _LONGEST_WORD and " " not in source[position : position + _LONGEST_WORD]:
            stop, broken = position + _LONGEST_WORD, True
        line = source[position:stop]
        fence = _FENCE.match(line)
        if fence is not None:
            if source[begin:position].strip():
                yield Stretch(begin, position)
                begin = position
            position = _fence_end(source, stop, fence.group(1))
            yield Stretch(begin, position, *_code(source[stop:position], fence))
            begin, in_list, blank = position, False, False
            continue
        empty = not line.strip()
        starts_item = _LIST_ITEM.match(line) is not None
        indented = line[:1] in (" ", "\t")
        cut = blank and not empty and not (in_list and (starts_item or indented))
        if (cut or was_broken or position - begin >= _LONGEST) and source[begin:position].strip():
            yield Stretch(begin, position)
            begin = position
        if not empty and (cut or not source[begin:position].strip()):
            in_list = starts_item
        in_list = in_list or (starts_item and not blank)
        blank = empty
        position = stop
    if source[begin:].strip() or begin == start:
        yield Stretch(begin, len(source))


def plain_stretches(source: str) -> Iterator[Stretch]:
    """Text that is not markdown, cut at line ends so that no stretch takes long to typeset."""
    begin = 0
    while begin < len(source):
        stop = len(source)
        if stop - begin > _LONGEST:
            line = source.rfind("\n", begin, begin + _LONGEST)
            stop = line + 1 if line >= begin else begin + _LONGEST
        yield Stretch(begin, stop)
        begin = stop


def _line_end(source: str, position: int) -> int:
    found = source.find("\n", position)
    return len(source) if found < 0 else found + 1


def _fence_end(source: str, position: int, mark: str) -> int:
    while position < len(source):
        stop = _line_end(source, position)
        closing = source[position:stop].strip()
        position = stop
        if closing and not closing.strip(mark[0]) and len(closing) >= len(mark):
            break
    return position


def _code(held: str, fence: re.Match[str]) -> tuple[str, str]:
    """What the fence holds, without its closing line, and its language."""
    lines = held.rstrip("\n").split("\n")
    closing, mark = lines[-1].strip(), fence.group(1)
    if closing and not closing.strip(mark[0]) and len(closing) >= len(mark):
        lines.pop()
    return "\n".join(lines).rstrip("\n"), fence.group(2).strip()
