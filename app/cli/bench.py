"""`elsewise bench`: the benchmark of this machine."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option("--quick", is_flag=True, help="Smaller sizes; ends within two minutes on two cores.")
@click.option("--backend", "backends", multiple=True, help="hf, mlx (more than once for several); default: all that run here.")
@click.option("--json", "json_path", type=click.Path(path_type=Path, dir_okay=False), help="Write the figures here as well.")
def bench(quick: bool, backends: tuple[str, ...], json_path: Path | None) -> None:
    """Measures how many tokens are computed against how many are needed."""
    from app.bench.run import run_bench  # the peers are imported for a benchmark alone

    run_bench(quick=quick, backends=backends, json_path=json_path)
