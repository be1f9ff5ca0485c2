"""How committed windows are looked after: the block `compact:`, and what `keep:` may say.

Belongs here: these two keys alone. Not here: which modes may have them (`export_rules.py`), doing it (`upkeep/`).
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator

from rivet_assets.blocks.export_values import DURATION_UNITS, Duration, rule_broken
from rivet_resources.contracts.retention import Retention
from rivet_resources.contracts.settings import Settings, Size

MB = 1024**2


class Compact(Settings):
    """When small parts and windows are joined, by `rivet compact` or its job."""

    target: Size = Field(256 * MB, description="size that joined parts aim at, at least 1MB; default 256MB")
    min_parts: int = Field(8, ge=2, description="fewest small parts, or windows, that are worth joining")
    older_than: Duration = Field(3600, description="windows committed since are left alone: 30m, 1h, 1d")

    @model_validator(mode="after")
    def target_is_worth_it(self) -> Self:
        """Refuse a target that no row group fits into."""
        if self.target < MB:
            raise rule_broken(
                "RIVET_CONFIG_COMPACT",
                f"target is {self.target} bytes, less than a row group of Parquet; write at least 1MB, such as 256MB",
            )
        return self


def compact_alone(given: object) -> object:
    """Read `compact: true` as the block with its defaults, and `false` as none."""
    return {} if given is True else None if given is False else given


def read_keep(given: object) -> object:
    """Read a number of windows, or an age such as 90d, in one spelling.

    Raises:
        PydanticCustomError: it is neither.
    """
    text = str(given).strip()
    match = re.fullmatch(r"(\d+)\s*([smhd]?)", text)
    if isinstance(given, bool) or not match or not int(match[1]):
        raise rule_broken(
            "RIVET_CONFIG_KEEP",
            f"{text!r} keeps nothing that could be told; write how many windows stay, such as 30, or how old they may "
            f"get, such as 90d",
        )
    return f"{int(match[1])}{match[2]}" if match[2] else int(match[1])


Keep = Annotated[int | str, BeforeValidator(read_keep, json_schema_input_type=int | str)]


def retention_of(keep: int | str) -> Retention:
    """Return what `keep:` means."""
    if isinstance(keep, int):
        return Retention(count=keep)
    return Retention(age=timedelta(seconds=int(keep[:-1]) * DURATION_UNITS[keep[-1]]))
