"""`rivet demo`."""

from __future__ import annotations

import click

from rivet_assets.cli.options import say


@click.command("demo", short_help="Export a small shop of an embedded PostgreSQL to ./rivet_demo.")
@click.option("--ui", is_flag=True, help="serve the same project in the Dagster UI on 127.0.0.1")
@click.option("--port", default=3000, show_default=True, help="of the UI")
def demo_command(ui: bool, port: int) -> int:
    """Fill a small shop in an embedded PostgreSQL and export it into ./rivet_demo."""
    from rivet_assets.demo import demo  # start

    return demo.serve_ui(port=port, say=say) if ui else demo.run(say=say)
