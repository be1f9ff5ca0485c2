"""`dg scaffold defs rivet_assets.Exports <name>`: a component file that loads and runs.

Belongs here: Dagster's side. Not here: the texts (`scaffold/`).
"""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import dagster as dg
from pydantic import BaseModel, Field

from rivet_assets.scaffold.component import template
from rivet_assets.scaffold.init import Wanted, write
from rivet_assets.scaffold.source import point
from rivet_resources.errors import ConfigError


class ScaffoldParams(BaseModel):
    """What may be asked for; nothing has to be."""

    source_env: str | None = Field(
        None, description="environment variable that holds a database's URL: writes an export for each of its tables"
    )
    tables: str | None = Field(None, description="only these, separated by commas: name, schema.name or a glob")
    destination: str = Field("exports", description="a path, s3://bucket/prefix, gs://bucket/prefix")
    tls: Literal["disable", "require", "verify-ca", "verify-full"] | None = Field(
        None, description="of a server that is not this machine; default verify-full"
    )


class ExportsScaffolder(dg.Scaffolder[ScaffoldParams]):
    """Writes a `defs.yaml`: of made-up rows, or for the tables of a live database."""

    @classmethod
    def get_scaffold_params(cls) -> type[ScaffoldParams]:
        """Return the options of `dg scaffold`."""
        return ScaffoldParams

    def scaffold(self, request: dg.ScaffoldRequest[ScaffoldParams]) -> None:
        """Write the file, or append to it.

        Raises:
            ConfigError: Python was asked for, or the database cannot be used.
        """
        if request.scaffold_format != "yaml":
            raise ConfigError(
                "rivet_assets.Exports is written as YAML; leave out --format. In Python: "
                "`rivet_assets.build_rivet_definitions(<rivet.yaml>)`."
            )
        path = request.target_path
        text = _text(request.params, path if not request.append else path.parent)
        if request.append:
            with path.open("a", encoding="utf-8") as file:
                file.write(f"---\n{text}")
        else:
            (path / "defs.yaml").write_text(text, encoding="utf-8")


def _text(params: ScaffoldParams, folder: Path) -> str:
    """Return what to write; of a database, as `rivet init` does.

    Raises:
        ConfigError, SourceError: the database cannot be used.
    """
    if params.source_env is None:
        return template(re.sub(r"[^A-Za-z0-9_]", "_", folder.name) or "orders")
    patterns = tuple(part.strip() for part in (params.tables or "").split(",") if part.strip())
    with TemporaryDirectory() as scratch:
        file = Path(scratch, "defs.yaml")
        pointed = point(url=None, env=params.source_env, file=None, tls=params.tls)
        write(pointed, Wanted(file, "defs", params.destination, patterns))
        return file.read_text(encoding="utf-8")
