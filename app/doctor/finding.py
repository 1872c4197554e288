"""The findings of the machine check, and its report."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import msgspec

Verdict = Literal["ok", "missed", "failed", "skipped"]
_PATH = re.compile(r"(?<![\w.~])~?(?:/[\w.@+ -]*[\w.@+-]){2,}/?|\b[A-Za-z]:\\\S+")  # does not match "tokens/s" and "hf/mlx"


class Finding(msgspec.Struct, frozen=True):
    """One figure of the check."""

    name: str
    figure: str  # with its unit
    bar: str = ""  # its limit, or ""
    # "ok", "missed" (the bar), "failed" (it could not be measured) or "skipped" (it does not apply here)
    verdict: Verdict = "ok"
    advice: str = ""  # what to do, or why it was skipped


class Report(msgspec.Struct):
    """All findings so far."""

    machine: dict[str, str]  # facts about the machine, without its name and paths
    findings: dict[str, list[Finding]]  # by part, in the order of the parts
    interrupted: bool = False  # whether the person stopped it

    @property
    def is_sound(self) -> bool:
        """Whether nothing missed its bar or failed."""
        return all(row.verdict in ("ok", "skipped") for rows in self.findings.values() for row in rows)


def held(name: str, value: float, limit: float, shown: str, bar: str, advice: str, *, at_least: bool = False) -> Finding:
    """Compares a figure with its bar.

    Args:
        name: As in `Finding`.
        value: The figure.
        limit: The most it may be (`at_least`: the least).
        shown: The figure in words.
        bar: The bar in words.
        advice: What to do when it is missed.
        at_least: Whether larger is better.
    """
    good = value >= limit if at_least else value <= limit
    return Finding(name, shown, bar, "ok" if good else "missed", "" if good else advice)


def markdown(report: Report) -> str:
    """The report for a bug report: facts of the machine, then a table for each part."""
    lines = ["## Machine check", "", *(f"- {name}: {value}" for name, value in report.machine.items())]
    for part, rows in report.findings.items():
        lines += ["", f"### {part}", "", *_table(rows)]
    if report.interrupted:
        lines += ["", "Interrupted: the parts after this were not run."]
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[Finding]) -> list[str]:
    head = ["| check | figure | bar | verdict | what to do |", "|---|---|---|---|---|"]
    return head + [f"| {' | '.join(_cell(cell) for cell in msgspec.structs.astuple(row))} |" for row in rows]


def _cell(text: str) -> str:
    """A text as one line without paths, which may contain names of people and projects."""
    return " ".join(_PATH.sub("(a path)", text).replace("|", "\\|").split())
