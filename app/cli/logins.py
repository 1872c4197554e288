"""`elsewise models login` and `logout`: the token of private and gated models."""

from __future__ import annotations

import sys

import click

from app.cli.common import console
from runtime import forget_token, keep_token, token_in_environment, token_owner


@click.command("login")
@click.option("--check", is_flag=True, help="Ask the hub whose token it is before it is kept.")
def login_command(check: bool) -> None:
    """Keeps a token for private and gated models in the system keychain. It is asked for, and not shown; no network is used.

    A pipe may bring it: elsewise models login < token.txt. A token in HF_TOKEN wins over the one that is kept.
    """
    token = click.prompt("token (hf_...)", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.readline()
    if check:
        with console.status("asking the hub"):
            owner = token_owner(token)
        click.echo(f"the hub knows it: {owner}", err=True)
    click.echo(f"the token is kept in {keep_token(token)}")
    if variable := token_in_environment():
        click.echo(f"note: {variable} is set, and wins", err=True)


@click.command("logout")
def logout_command() -> None:
    """Removes the token from the system keychain."""
    click.echo("the token is removed from the system keychain" if forget_token() else "no token was kept")
    if variable := token_in_environment():
        click.echo(f"note: {variable} is set, and is used still", err=True)
