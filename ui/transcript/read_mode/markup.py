"""Tool calls, formulas and marks in a text."""

from __future__ import annotations

import re

OPENERS = ("<tool_call>", "<|python_tag|>", "[TOOL_CALLS]")  # of hermes, llama3, mistral
_NAME = re.compile(r'"name"\s*:\s*"([^"\\]{1,200})"')


def open_call(text: str) -> int | None:
    """The first character of the first tool call in an unfinished answer; None if there is none yet.

    An answer that begins with a brace counts as a call, and so does an incomplete opener at its end.
    """
    begin = len(text) - len(text.lstrip())
    if text[begin : begin + 1] == "{":
        return begin
    found = [at for opener in OPENERS if (at := text.find(opener)) >= 0]
    if found:
        return min(found)
    for opener in OPENERS:
        for length in range(min(len(opener) - 1, len(text)), 1, -1):
            if text.endswith(opener[:length]):
                return len(text) - length
    return None


def called_name(text: str) -> str:
    """The name in the last call of a text; "" if it is not complete yet."""
    names = _NAME.findall(text)
    return str(names[-1]) if names else ""


MOST = 1000  # characters of one formula; a longer or unfinished one is text
_SPAN = re.compile(
    rf"""
    (?P<code> (?P<ticks>`+) (?!`) .{{1,{MOST}}}? (?<!`) (?P=ticks) (?!`) )
  | \\\( .{{1,{MOST}}}? \\\)
  | \\\[ .{{1,{MOST}}}? \\\]
  | \$\$ .{{1,{MOST}}}? \$\$
  | (?<![\\$\w]) \$ (?=[^\s$]) [^$\n]{{1,{MOST}}} (?<=[^\s\\]) \$ (?![\d$])
  | \\begin\{{ (?P<name>\w{{1,32}}\*?) \}} .{{1,{MOST}}}? \\end\{{ (?P=name) \}}
    """,
    re.VERBOSE | re.DOTALL,
)
_MARKS = re.compile(r"[!-/:-@\[-`{-~]")  # the characters that a backslash escapes


def formulas(source: str) -> list[str]:
    """The formulas in a text, in order, with their delimiters."""
    if "$" not in source and "\\" not in source:
        return []
    return [found.group() for found in _SPAN.finditer(source) if found.group("code") is None]


def with_plain_maths(source: str) -> str:
    """The markdown with formulas escaped, so that they stay plain text with their lines. Code stays code."""
    if "$" not in source and "\\" not in source:
        return source
    return _SPAN.sub(_plain, source)


def _plain(found: re.Match[str]) -> str:
    formula = found.group()
    if found.group("code") is not None:
        return formula
    return _MARKS.sub(r"\\\g<0>", formula).replace("\n", "\\\n")  # a backslash keeps the line break


MARKS = "*_~`[]()!\\"  # of Markdown, inside a line
NO_MARKS = {ord(mark): 0xF0000 + ord(mark) for mark in MARKS}  # to characters of Unicode's private use, which are not typed
_LITERAL = re.compile(
    rf"""
    (?<!`) (?P<ticks>`++) (?P<code>(?:(?!\n[ \t]*\n).){{1,{MOST}}}?) (?<!`) (?P=ticks) (?!`)
  | \\ (?P<sign>[!-/:-@\[-`{{-~])
    """,
    re.VERBOSE | re.DOTALL,
)


def with_inline_marks_alone(markdown: str) -> str:
    """The markdown with literal marks, in inline code and after a backslash, replaced by `NO_MARKS`."""
    return _LITERAL.sub(_unmarked, markdown)


def _unmarked(found: re.Match[str]) -> str:
    whole, name = found.group(), "sign" if found["code"] is None else "code"
    start, stop = (place - found.start() for place in found.span(name))
    return whole[:start] + whole[start:stop].translate(NO_MARKS) + whole[stop:]


_NAMELESS = re.compile(rf"(?P<code>(?P<ticks>`+)(?!`).{{1,{MOST}}}?(?<!`)(?P=ticks)(?!`))|!\[\]\(", re.DOTALL)


def with_named_pictures(source: str) -> str:
    """The markdown with a space as the name of nameless pictures, which Qt would leave out."""
    return _NAMELESS.sub(lambda found: found.group("code") or "![ ](", source) if "![](" in source else source
