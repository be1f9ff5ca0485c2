"""DECIDES: what to read, in which windows, under which rules; describes it to Dagster, lazily.

Belongs here: configuration, modes, quality rules, Dagster definitions, the command line.
Not here: anything that holds a connection, a file or a clock (`rivet_resources`).

The names below are what a project imports, and `type: rivet_assets.Exports` what its YAML says. Each is loaded only
when asked for: the pure core needs no Dagster.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rivet_assets.dagster.around import RivetRun as RivetRun
    from rivet_assets.dagster.code_first import build_rivet_assets as build_rivet_assets
    from rivet_assets.dagster.code_first import build_rivet_definitions as build_rivet_definitions
    from rivet_assets.dagster.code_first import rivet_assets as rivet_assets
    from rivet_assets.dagster.component import Exports as Exports
    from rivet_assets.dagster.translator import ExportData as ExportData
    from rivet_assets.dagster.translator import RivetTranslator as RivetTranslator
    from rivet_assets.launch.rivet_resource import RivetResource as RivetResource

PUBLIC = {
    "Exports": "dagster.component",
    "ExportData": "dagster.translator",
    "RivetResource": "launch.rivet_resource",
    "RivetRun": "dagster.around",
    "RivetTranslator": "dagster.translator",
    "build_rivet_assets": "dagster.code_first",
    "build_rivet_definitions": "dagster.code_first",
    "rivet_assets": "dagster.code_first",
}


def __getattr__(name: str) -> object:
    if name in PUBLIC:
        return getattr(import_module(f"rivet_assets.{PUBLIC[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *PUBLIC]  # `dg` looks for components among the names that a module lists
