"""`shards:` of an export: databases of one shape, each a window and a partition of one asset.

Belongs here: the names of shards and of their variables. Not here: connecting to one (`modes/by_shard.py`), windows
(`contracts/rows/value_windows.py`).

Decision: a shard is a name and the environment variable with its URL (of SQLite, its path), nothing else. Type, tuning,
TLS and the cap on connections are those of the export's source, whose own address is not used then. Whole source
blocks, or names of `sources:`, would let shards differ in more than their address, which one asset cannot show.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from rivet_assets.blocks.export_values import rule_broken
from rivet_resources.contracts.rows.value_windows import RESERVED

CODE = "RIVET_CONFIG_SHARDS"
SHARD = re.compile(r"[A-Za-z0-9_-]{1,64}")  # a folder, a partition and a part of a key of state
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def apart(shards: Any) -> Any:
    """Refuse names and variables that do not tell databases apart; what else is wrong with the block is told later."""
    if not isinstance(shards, dict):
        return shards
    if not shards:
        raise rule_broken(CODE, "names no database; write at least one, such as eu: EU_URL")
    names: dict[str, str] = {}
    variables: dict[str, str] = {}
    for name, variable in shards.items():
        if not isinstance(name, str) or not SHARD.fullmatch(name) or name in RESERVED:
            raise rule_broken(
                CODE,
                f"{name!r} cannot name a shard; use up to 64 letters, digits, '_' and '-', in quotes if it is a number",
            )
        if not isinstance(variable, str) or not VARIABLE.fullmatch(variable):  # it may be the URL itself: not shown
            raise rule_broken(
                CODE, f"shard {name} does not name an environment variable; write {name}: {_suggested(name)}"
            )
        if (other := names.setdefault(name.lower(), name)) != name:
            raise rule_broken(CODE, f"shards {other!r} and {name!r} are one folder on many disks; rename one")
        if (other := variables.setdefault(variable, name)) != name:
            raise rule_broken(CODE, f"shards {other!r} and {name!r} are both at {variable}; give each a variable")
    return shards


def _suggested(name: str) -> str:
    """Return a variable that would do for a shard."""
    return "SHARD_" + re.sub(r"[^A-Z0-9]", "_", name.upper()) + "_URL"


Shards = Annotated[dict[str, str], Field(min_length=1), BeforeValidator(apart)]
