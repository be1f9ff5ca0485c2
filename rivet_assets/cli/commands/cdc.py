"""`rivet cdc`."""

from __future__ import annotations

from typing import Any

import click

from rivet_assets.cli.options import say


@click.command("cdc")
@click.option("--source", metavar="URL", help="of a database on this machine; a remote one needs a config with `tls:`")
@click.option("--source-env", metavar="VAR", help="environment variable that holds the URL")
@click.option("--source-file", metavar="PATH", help="file that holds the URL")
@click.option("--table", required=True, metavar="T", help="name or schema.name")
@click.option("--output", metavar="DIR", help="write files there; default: one line of NDJSON per change on stdout")
@click.option(
    "--format", "form", type=click.Choice(["parquet", "csv", "ndjson", "avro"]), help="of files; default parquet"
)
@click.option("--checkpoint", metavar="PATH", help="file that keeps the position; default: the state store here")
@click.option("--rollover", type=int, metavar="N", help="changes per part")
@click.option("--max-events", type=int, metavar="N", help="end with the first commit at or past N changes")
@click.option("--until-current", is_flag=True, help="end where the log ends now; default: follow it until Ctrl-C")
@click.option("--server-id", type=int, metavar="N", help="MySQL: replica id of this reader")
@click.option("--slot", metavar="S", help="PostgreSQL: logical slot; default rivet_slot")
@click.option("--capture-instance", metavar="C", help="SQL Server: capture instance")
@click.option("--snapshot", is_flag=True, help="first a copy of the table")
def cdc_command(**options: Any) -> int:
    """Follow one table's changes from the command line."""
    from rivet_assets.cli.cdc_config import Asked, follow  # start

    return follow(Asked(**options), say=say)
