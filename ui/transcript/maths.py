r"""LaTeX in an answer is shown as its source: what markdown would take for its own marks is kept as it was written.

Known are ``\(…\)``, ``\[…\]``, ``$…$``, ``$$…$$`` and environments (``\begin{align}…\end{align}``); prices are no formulas.
"""

from __future__ import annotations

import re

_MOST = 1000  # characters of one formula; what is longer, or never ends, is text
_SPAN = re.compile(
    rf"""
    (?P<code> (?P<ticks>`+) (?!`) .{{1,{_MOST}}}? (?<!`) (?P=ticks) (?!`) )
  | \\\( .{{1,{_MOST}}}? \\\)
  | \\\[ .{{1,{_MOST}}}? \\\]
  | \$\$ .{{1,{_MOST}}}? \$\$
  | (?<![\\$\w]) \$ (?=[^\s$]) [^$\n]{{1,{_MOST}}} (?<=[^\s\\]) \$ (?![\d$])
  | \\begin\{{ (?P<name>\w{{1,32}}\*?) \}} .{{1,{_MOST}}}? \\end\{{ (?P=name) \}}
    """,
    re.VERBOSE | re.DOTALL,
)
_MARKS = re.compile(r"[!-/:-@\[-`{-~]")  # all that a backslash in front of makes plain


def with_plain_maths(source: str) -> str:
    """The same markdown, in which formulas are plain text, line by line as they stand. Code stays code."""
    if "$" not in source and "\\" not in source:
        return source
    return _SPAN.sub(_plain, source)


def _plain(found: re.Match[str]) -> str:
    formula = found.group()
    if found.group("code") is not None:
        return formula
    return _MARKS.sub(r"\\\g<0>", formula).replace("\n", "\\\n")  # a backslash at a line's end keeps the line
