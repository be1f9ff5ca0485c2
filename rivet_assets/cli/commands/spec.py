"""`rivet spec`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import click

from rivet_assets.cli.options import JSON, print_rows


@click.command("spec", short_help="List engines, destinations, formats, transforms and their keys.")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@JSON
def spec_command(names: Sequence[str], as_json: bool) -> int:
    """List every engine, destination, format and transform; with a NAME, such as s3 or engine, its keys."""
    from rivet_assets.config.spec import spec  # start

    blocks = spec(*names)
    if as_json:
        return print_rows([asdict(block) for block in blocks], as_json=True)
    if not names:
        return print_rows([
            {"kind": block.kind, "words": ", ".join(block.words), "extra": block.extra or None, "keys": len(block.keys)}
            for block in blocks
        ], as_json=False)  # fmt: skip
    return print_rows([
        {
            "of": f"{block.kind} {block.words[0]}",
            "key": key.key,
            "takes": key.type,
            "default": "required" if key.is_required else key.default,
            "description": key.description,
        }
        for block in blocks
        for key in block.keys
    ], as_json=False)  # fmt: skip
