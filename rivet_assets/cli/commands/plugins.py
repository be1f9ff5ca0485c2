"""`rivet plugins`."""

from __future__ import annotations

import click

from rivet_assets.cli.options import JSON, print_rows


@click.command("plugins", short_help="List engines, destinations and more that packages bring.")
@JSON
def plugins_command(as_json: bool) -> int:
    """List what installed packages add to Rivet, and what of it cannot be used; exit code 1 when something cannot."""
    from rivet_assets.config.spec import KINDS  # start

    rows = [
        {
            "kind": plugin.kind,
            "word": plugin.word,
            "package": plugin.package,
            "version": plugin.version,
            "class": plugin.path,
            "status": "ok" if error is None else str(error),
        }
        for registry in KINDS.values()
        for plugin, error in registry.plugins()
    ]
    print_rows(rows, as_json=as_json)
    return int(any(row["status"] != "ok" for row in rows))
