"""`elsewise models connect`: saves models on servers under names that the user chooses."""

from __future__ import annotations

import click

from app.cli.common import console, read_secret
from runtime import Connection, add_connection

EXAMPLES = """\b
Examples:
  elsewise models connect big http://127.0.0.1:8000
  elsewise models connect cluster https://vllm.example.org/v1 --model meta-llama/Llama-3.1-70B --key
  elsewise ask "Name three colours." --model big
"""


@click.command("connect", epilog=EXAMPLES)
@click.argument("name")
@click.argument("url")
@click.option("--model", help="The model's id on the server; not needed if it has only one.")
@click.option("--tokenizer", metavar="PATH|NAME", help="A tokenizer of this machine, or 'server' for the server's.")
@click.option("--key", "with_key", is_flag=True, help="Ask for the server's key without showing it; it can also be piped in.")
@click.option("--plain-http", is_flag=True, help="Allow unencrypted HTTP to another machine, from now on.")
def connect_command(name: str, url: str, model: str | None, tokenizer: str | None, with_key: bool, plain_http: bool) -> None:
    """Saves a server's model under NAME, to be used with --model. The key is stored only in the system keychain.

    Asks the server what it supports and prints what is missing.
    """
    key = read_secret("key") if with_key else ""
    with console.status(f"connecting to {url}"):
        info, kept_in = add_connection(Connection(name, url, model, plain_http, tokenizer), key.strip())
    click.echo(f"{name}: {info.name}, {info.backend} {info.options['server_version']}".rstrip())
    click.echo(f"it has: {', '.join(info.capabilities)}")
    for warning in info.warnings:
        click.echo(f"note: {warning}", err=True)
    if kept_in:
        click.echo(f"the key is stored in {kept_in}")
