"""`elsewise score --against`: one text under two models, side by side."""

from __future__ import annotations

import csv
import json
import sys
from typing import Any

import click
import numpy as np
from rich.table import Table
from rich.text import Text

from app.cli.common import print_table
from app.cli.printing import shown
from runtime import ModelComparison, texts_of

FIELDS = ("text", "bytes", "tokens", "logprob", "against_tokens", "against_logprob", "difference", "rank", "against_rank")


def write_json(found: ModelComparison) -> None:
    """One object a span, then one that sums it up."""
    for row in rows_of(found):
        click.echo(json.dumps(row, ensure_ascii=False))
    click.echo(json.dumps(summary(found), ensure_ascii=False))


def write_csv(found: ModelComparison) -> None:
    """A row for each span, with a header."""
    names = [*FIELDS, "likeliest", "against_likeliest", "disagree", *(["kl"] if found.kl is not None else [])]
    writer = csv.writer(sys.stdout)
    writer.writerow(names)
    for row in rows_of(found):
        writer.writerow([row[name] for name in names])


def write_table(found: ModelComparison) -> None:
    """A line for each span; a star where the two would have gone on differently."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    names = ["", "text", "A", "B", "B - A", "rank A", "rank B", "A says", "B says", ""]
    if found.kl is not None:
        names.insert(7, "KL")
    for name in names:
        table.add_column(name, justify="left" if name in ("text", "A says", "B says") else "right", no_wrap=True)
    for at, row in enumerate(rows_of(found)):
        numbers = [_number(row[name]) for name in ("logprob", "against_logprob", "difference")]
        ranks = [str(row[name] or "-") for name in ("rank", "against_rank")]
        kl = [_number(row["kl"])] if found.kl is not None else []
        says = [Text(shown(row[name])) for name in ("likeliest", "against_likeliest")]
        table.add_row(
            str(at),
            Text(shown(bytes.fromhex(row["bytes"]).decode(errors="replace"))),
            *numbers,
            *ranks,
            *kl,
            *says,
            "*" if row["disagree"] else "",
        )
    print_table(table)


def words(found: ModelComparison) -> list[str]:
    """What the comparison comes to, in lines for stderr."""
    lines = [
        f"{letter} {side.name}: log-probability {total.logprob:,.2f} nats over {total.tokens:,} tokens, "
        f"perplexity {_number(total.perplexity)} a token, {_number(total.byte_perplexity)} a byte"
        for letter, side, total in zip("AB", found.sides, found.totals(), strict=True)
    ]
    where = f"{found.disagrees():,} of {len(found):,} places disagree about the likeliest token"
    if found.aligned_by == "bytes":
        where += "; the tokenizers differ, aligned by bytes"
    return [*lines, where]


def rows_of(found: ModelComparison) -> list[dict[str, Any]]:
    """The spans; null where nothing is known."""
    left, right = found.sides
    rows = []
    spelled = [b"".join(left.tokens_of(i) or right.tokens_of(i)) for i in range(len(found))]
    texts = texts_of(spelled)
    columns = zip(
        left.logprob, right.logprob, found.difference, left.rank, right.rank, found.disagree.tolist(), strict=True
    )  # fmt: skip
    for i, (one, two, difference, rank, other, disagree) in enumerate(columns):
        row = {
            "text": texts[i],
            "bytes": spelled[i].hex(),
            "tokens": len(left.tokens_of(i)),
            "logprob": _known(one),
            "against_tokens": len(right.tokens_of(i)),
            "against_logprob": _known(two),
            "difference": _known(difference),
            "rank": int(rank) or None,
            "against_rank": int(other) or None,
            "likeliest": left.top_of(i).decode(errors="replace"),
            "against_likeliest": right.top_of(i).decode(errors="replace"),
            "disagree": disagree,
        }
        rows.append(row if found.kl is None else row | {"kl": _known(found.kl[i])})
    return rows


def summary(found: ModelComparison) -> dict[str, Any]:
    """The sums, for programs."""
    sides = [
        {
            "model": side.name,
            "logprob": total.logprob,
            "tokens": total.tokens,
            "perplexity": total.perplexity,
            "byte_perplexity": total.byte_perplexity,
        }
        for side, total in zip(found.sides, found.totals(), strict=True)
    ]
    return {
        "type": "summary",
        "aligned_by": found.aligned_by,
        "bytes": found.totals()[0].bytes,
        "places": len(found),
        "disagree": found.disagrees(),
        "left": sides[0],
        "right": sides[1],
    }


def _known(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.3f}"
