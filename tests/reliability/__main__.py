"""`python -m tests.reliability`: the table; exit status 1 if a row has failures."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import msgspec

from tests.reliability.suite import ROWS, SEED, Result, carry_out, run_all, table


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.reliability", description=__doc__)
    parser.add_argument("--short", action="store_true", help="fewer tries: some minutes")
    parser.add_argument("--only", metavar="ROW", action="append", help="a row whose name holds this; may be given again")
    parser.add_argument("--seed", type=int, default=SEED, help="of everything that is drawn (default: %(default)s)")
    parser.add_argument("--minutes", type=float, help="how long the soak goes on")
    parser.add_argument("--times", type=int, default=1, help="so many times the tries of each row")
    parser.add_argument("--jobs", type=int, default=min(os.cpu_count() or 1, 4), help="rows at a time (default: %(default)s)")
    parser.add_argument("--row", nargs=4, help=argparse.SUPPRESS)  # one row, in this process: name, seed, count, result
    chosen = parser.parse_args()
    if chosen.row:
        name, seed, count, answer = chosen.row
        row = next(row for row in ROWS if row.name == name)
        Path(answer).write_bytes(msgspec.json.encode(carry_out(row, int(seed), int(count))))
        return 0
    rows = [row for row in ROWS if chosen.only is None or any(part in row.name for part in chosen.only)]
    if not rows:
        parser.error(f"no row is named so; there are: {', '.join(row.name for row in ROWS)}")
    orders = []
    for row in rows:
        count = row.short if chosen.short else row.full
        if row.timed:
            count = round(chosen.minutes * 60) if chosen.minutes else count
        else:
            count *= chosen.times
        orders.append((row, count))

    def told(result: Result) -> None:
        verdict = f"{len(result.failures):,} failures" if result.failures else "sound"
        sys.stderr.write(f"{result.name}: {result.tried:,} tried, {verdict}, {result.seconds:.0f} s\n")

    results = run_all(orders, chosen.seed, chosen.jobs, told)
    sys.stdout.write(f"\n{table(results)}\n")
    return 1 if any(result.failures for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
