"""The Avro schema of an export as its table is now, and whether it fits those that readers have; reads no row.

Belongs here: what `rivet schema show` and `check` answer. Not here: the rules (`contracts/avro_compatibility.py`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rivet_assets.config.root import RivetConfig
from rivet_assets.preflight.contract import look
from rivet_resources.contracts.avro_compatibility import Compatibility, breaks, fingerprints
from rivet_resources.errors import ConfigError
from rivet_resources.write.formats.avro import Avro
from rivet_resources.write.formats.avro_schema import avro_schema


@dataclass(frozen=True)
class SchemaCheck:
    """What of an export's schema breaks a rule towards others."""

    export: str
    compatibility: Compatibility
    against: tuple[str, ...]
    breaks: tuple[str, ...]
    fingerprints: dict[str, str]


def schema_of_export(config: RivetConfig, name: str) -> dict[str, Any]:
    """Return the Avro schema of the columns that an export has now, its record named as the export is.

    Raises:
        SourceError: the source does not answer, or refuses.
        UnsupportedColumn: Avro cannot hold a column.
    """
    export = config.export(name)
    schema = look(config, export)[1]
    Avro().check_schema(schema, export=name)
    return avro_schema(schema, name=record_name(name))


def record_name(export: str) -> str:
    """Return the name of an export as Avro takes it: other signs become _."""
    name = "".join(sign if sign.isascii() and sign.isalnum() else "_" for sign in export)
    return f"_{name}" if name[:1].isdigit() else name


def check_schema(
    config: RivetConfig, name: str, *, against: Sequence[Path], compatibility: Compatibility
) -> SchemaCheck:
    """Hold the schema that an export has now against files of Avro schemas, the newest last.

    Raises:
        ConfigError: a file is no Avro schema.
    """
    olds = [read_schema_file(path) for path in against]
    new = schema_of_export(config, name)
    try:
        found = breaks(new, olds, compatibility=compatibility)
    except (KeyError, TypeError, AttributeError) as error:
        names = ", ".join(map(str, against))
        raise ConfigError(f"{names}: not all of them are Avro schemas. Name .avsc files.") from error
    return SchemaCheck(name, compatibility, tuple(map(str, against)), tuple(found), fingerprints(new))


def read_schema_file(path: Path) -> Any:
    """Read a file of an Avro schema.

    Raises:
        ConfigError: it cannot be read, or is not JSON.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}. Name a file of an Avro schema.") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON, so no Avro schema. Name an .avsc file.") from error
    if not isinstance(found, dict | list | str):
        raise ConfigError(f"{path} holds no Avro schema. Name an .avsc file.")
    return found
