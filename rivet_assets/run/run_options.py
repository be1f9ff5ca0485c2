"""What one run of an export may be asked to do otherwise than its block says: `full_refresh`, `validate`, `limit` …

Belongs here: the options, their rules, what they make of an export. Not here: how they reach a run
(`dagster/run_config.py`), what a sample is (`sample.py`), proving (`prove/prove_run.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from rivet_resources.contracts.settings import Settings, Tuning
from rivet_resources.errors import ConfigError

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export


class RunOptions(Settings):
    """Options of one run; without any it does what it always does."""

    full_refresh: bool = Field(
        False,
        description="begin anew, as after `rivet state reset`: what is published stays until this run replaces it",
    )
    is_validated: bool = Field(
        False, alias="validate", description="then read the published files back and compare them with the manifests"
    )
    reconcile: bool = Field(
        False, description="then count the source's rows against what was published, too; implies `validate`"
    )
    depth: Literal["counts", "checksums"] | None = Field(
        None,
        description="how closely `reconcile` looks, which it implies, and the check `equals_source` executed alone: "
        "counts counts rows; checksums reads the source again and compares cells",
    )
    limit: int | None = Field(
        None, ge=1, description="a trial: read so many rows at most, write and verify them, publish nothing"
    )
    parallel: int | None = Field(None, ge=1, description="tasks that read the source side by side, in this run")
    tuning: Tuning | None = Field(None, description="overrides the tuning of export and source in this run")

    @model_validator(mode="after")
    def limit_proves_nothing(self) -> Self:
        """Refuse to prove what is not published."""
        if self.limit is not None and (self.is_validated or self.is_reconciled):
            raise ValueError(
                "`limit` publishes nothing, so there is nothing to validate or reconcile; keep one of them"
            )
        return self

    @property
    def is_reconciled(self) -> bool:
        """Return whether the run compares what it published with the source."""
        return self.reconcile or self.depth is not None

    @property
    def asked(self) -> dict[str, str]:
        """Return what was asked for, as words: {option: its value}."""
        return {name: _text(value) for name, value in self.model_dump(exclude_defaults=True, by_alias=True).items()}

    @property
    def sentence(self) -> str:
        """Return what was asked for in one line, such as `full_refresh, limit 100`; '' for nothing."""
        return ", ".join(name if value == "true" else f"{name} {value}" for name, value in self.asked.items())


class TableRunOptions(Settings):
    """Options of one run of a table kept beside changes."""

    full_refresh: bool = Field(False, description="make it of all changes anew, and not of its last version")


def read_options(given: Mapping[str, Any], export: Export) -> RunOptions:
    """Read the options of a run of `export`.

    Raises:
        ConfigError: a value is out of its range, or an option means nothing for the export's mode.
    """
    try:
        options = RunOptions.model_validate(dict(given))
    except ValidationError as error:
        told = (".".join(map(str, each["loc"])) for each in error.errors())
        texts = (each["msg"].removeprefix("Value error, ") for each in error.errors())
        wrong = "; ".join(f"`{key}`: {text}" if key else text for key, text in zip(told, texts, strict=True))
        raise ConfigError(f"Options of a run of export {export.name}: {wrong}.") from None
    answers = export.answers
    # A sample forgets nothing: with it `full_refresh` says where it begins, which every mode can answer.
    if options.full_refresh and options.limit is None and answers.no_refresh:
        raise _meaningless("full_refresh", export, answers.no_refresh)
    if options.limit is not None and answers.no_sample:
        raise _meaningless("limit", export, answers.no_sample)
    return options


def tuned(export: Export, options: RunOptions) -> Export:
    """Return the export with the tuning of this run over its own."""
    changed: dict[str, Any] = {}
    if options.parallel is not None:
        changed["parallel"] = options.parallel
    if options.tuning is not None:
        own = export.tuning.model_dump(exclude_none=True) if export.tuning else {}
        # Key by key: a run that asks for a smaller page keeps the export's other limits.
        changed["tuning"] = Tuning(**{**own, **options.tuning.model_dump(exclude_none=True)})
    return export.model_copy(update=changed) if changed else export


def _meaningless(option: str, export: Export, why: str) -> ConfigError:
    return ConfigError(
        f"Options of a run of export {export.name}: `{option}` means nothing for mode {export.mode}: {why}. Leave it "
        f"out, or choose other exports."
    )


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_text(each)}" for name, each in value.items() if each is not None)
    return str(value).lower() if isinstance(value, bool) else str(value)
