"""`rivet init`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, cast

import click

from rivet_assets.cli.options import say

SOURCE_ENV = click.option("--source-env", metavar="VAR", help="environment variable that holds the URL")
SOURCE_FILE = click.option("--source-file", metavar="PATH", help="file that holds the URL")
TABLES = click.option(
    "--table", "patterns", multiple=True, metavar="GLOB", help="name, schema.name or a glob of either; may be repeated"
)
TLS = click.option(
    "--tls",
    type=click.Choice(["disable", "require", "verify-ca", "verify-full"]),
    help="of a server that is not this machine; default verify-full",
)


@click.command("init", short_help="Write a commented rivet.yaml for the tables of a source.")
@click.option("--source", metavar="URL", help="or the path of a SQLite file; a URL is never written to the file")
@SOURCE_ENV
@SOURCE_FILE
@TABLES
@click.option(
    "--destination", default="exports", show_default=True, help="a path, s3://bucket/prefix, gs://…, abfss://…"
)
@click.option(
    "--format", "form", type=click.Choice(["parquet", "csv", "defs"]), default="parquet", show_default=True,
    help="of the parts; defs: a Dagster component with Parquet parts",
)  # fmt: skip
@click.option("-o", "--output", type=click.Path(path_type=Path), help="default: rivet.yaml; of defs: defs.yaml")
@click.option("--force", is_flag=True, help="replace the file if it is there")
@TLS
def init_command(
    source: str | None, source_env: str | None, source_file: str | None, patterns: tuple[str, ...],
    destination: str, form: str, output: Path | None, force: bool, tls: str | None,
) -> int:  # fmt: skip
    """Write a commented rivet.yaml for the tables of a source; no row is read."""
    from rivet_assets.scaffold.init import Wanted, write  # start
    from rivet_assets.scaffold.source import point  # start

    pointed = point(url=source, env=source_env, file=source_file, tls=tls)
    wanted = Wanted(
        output=output or Path("defs.yaml" if form == "defs" else "rivet.yaml"),
        form=cast(Literal["parquet", "csv", "defs"], form),
        destination=destination,
        patterns=patterns,
        force=force,
    )
    for line in write(pointed, wanted).lines:
        say(line)
    return 0
