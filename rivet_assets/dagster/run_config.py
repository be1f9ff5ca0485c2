"""Options of one run (`run/run_options.py`) as Dagster has them: the run config of an export's step.

Belongs here: their schema, reading them, tags, what becomes of proofs. Not here: what an option does.

Dagster refuses unknown keys and wrong types by it, before a run begins; ranges, and options that mean nothing for a
mode, are refused when the step begins.
"""

import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

import dagster as dg
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rivet_assets.blocks.export import Export
from rivet_assets.config.load import RivetConfig
from rivet_assets.dagster.checks.drain_checks import change_evaluations
from rivet_assets.dagster.checks.proof_checks import EQUALS_SOURCE, FILES_INTACT, is_close_enough
from rivet_assets.dagster.pages.lineage import key_part
from rivet_assets.prove.prove_run import Proofs, Proved, prove_run
from rivet_assets.run.reset import forget
from rivet_assets.run.run_options import RunOptions, TableRunOptions, read_options, tuned
from rivet_resources.state.store import State

# Run tag: what a run began anew is not begun anew by its retries.
FORGOTTEN = "rivet/forgotten"
LIMIT = "rivet/limit"


def schema_of(model: type[BaseModel]) -> dict[str, dg.Field]:
    """Return the fields of a model as Dagster's config has them, none required."""
    return {
        field.alias or name: dg.Field(_type(field), is_required=False, description=field.description)
        for name, field in model.model_fields.items()
    }


def _type(field: FieldInfo) -> Any:
    kind = field.annotation
    if get_origin(kind) in (Union, types.UnionType):
        (kind,) = (each for each in get_args(kind) if each is not type(None))
    if get_origin(kind) is Literal:
        # Dagster names the type of a value that it refuses, and not what is allowed; so the name says it.
        return dg.Enum("_or_".join(get_args(kind)), [dg.EnumValue(word) for word in get_args(kind)])
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return dg.Shape(schema_of(kind))  # type: ignore[no-untyped-call]
    return kind


# One schema is made for all exports, of the one model, since a class of Dagster's own would be taken apart again for
# each asset.
RUN_CONFIG, TABLE_RUN_CONFIG = schema_of(RunOptions), schema_of(TableRunOptions)


@dataclass(frozen=True)
class AskedRun:
    """One run of one export, and what it was asked for."""

    config: RivetConfig
    export: Export  # with the tuning of this run
    options: RunOptions
    context: dg.AssetExecutionContext

    @property
    def name(self) -> str:
        """Return the export's name as it stands in tags."""
        return _tag_part(self.export)

    def begin(self, state: State) -> Callable[[Export], None] | None:
        """Return what makes the run begin anew; to be called under the lease. None: it goes on as ever.

        It is given the export that begins anew: this one, or one of its shards.
        """
        if not self.options.full_refresh:
            return None

        def begin_anew(export: Export) -> None:
            instance, run_id = self.context.instance, self.context.run_id
            tag = f"{FORGOTTEN}.{_tag_part(export)}"
            # A step over partitions is never tried again, and its threads leave the instance alone.
            run = None if export.of_shard else instance.get_run_by_id(run_id)
            # A retry of the step keeps what was read since.
            if run is not None and run.tags.get(tag) == run_id:
                return
            # The tag comes after it: a run that dies in between has read nothing yet, and forgets once more.
            forget(self.config, export, state=state)
            self.context.log.info(f"{export.name}: begins anew, as `full_refresh` asks for.")
            if not export.of_shard:
                instance.add_run_tags(run_id, {tag: run_id})

        return begin_anew

    def prove(self, run_ids: Sequence[str], state: State) -> Proved:
        """Prove what is asked for of what these runs committed."""
        asked, depth = self.options, self.options.depth or "counts"
        proofs = Proofs(asked.is_validated or asked.is_reconciled, asked.is_reconciled, depth)
        if not proofs.validate or not run_ids:
            return Proved()
        proved = prove_run(self.config, self.export, proofs, run_ids=run_ids, state=state, tell=self.context.log.info)
        for warning in proved.warnings:
            self.context.log.warning(f"{self.export.name}: {warning}")
        self._tell(proved)
        return proved

    def _tell(self, proved: Proved) -> None:
        if proved.disproof is not None:
            self.context.log.error(f"{self.export.name} is published, but {proved.disproof.text}")
            return
        seen = [window for folder in proved.folders for window in folder.windows]
        parts, rows = (sum(getattr(each, fact) for each in seen) for fact in ("parts", "rows"))
        text = f"{parts} files with {rows} rows of {len(seen)} windows are what was committed"
        if proved.reconciled is not None:
            text += f"; {proved.reconciled.text}"
        self.context.log.info(f"{self.export.name}: {text}.")


def _tag_part(export: Export) -> str:
    return key_part(export.name.replace("/", "."))


def asked_of(context: dg.AssetExecutionContext, export: Export, *, config: RivetConfig) -> AskedRun:
    """Read the run config of an export's step, and tag the run with what it asks for.

    Raises:
        ConfigError: a value is out of its range, or an option means nothing for the export's mode.
    """
    options = read_options(context.op_execution_context.op_config or {}, export)
    asked = AskedRun(config, tuned(export, options), options, context)
    tags = {f"rivet/{option}.{asked.name}": value for option, value in options.asked.items()}
    if tags:
        context.log.info(f"{export.name}: this run is asked for {options.sentence}.")
        try:
            context.instance.add_run_tags(context.run_id, tags)
        except Exception as error:  # as in `run_tags.py`
            context.log.warning(f"{export.name}: the run was not tagged ({type(error).__name__}).")
    return asked


def proof_evaluations(
    key: dg.AssetKey, proved: Proved, *, instance: dg.DagsterInstance
) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield the verdicts of the asset's checks on demand that were come to along the way.

    They speak of all windows: a fault in one of them is theirs too, and only a look at all of them makes them green,
    one as close as that which made them red.
    """
    from rivet_assets.dagster.checks.proof_verdicts import files_verdict, source_verdict  # start

    verdicts = [files_verdict(FILES_INTACT, proved.folders)] if proved.folders else []
    if (found := proved.reconciled) is not None:
        verdicts += [source_verdict(EQUALS_SOURCE, found)] if is_close_enough(found, key, instance) else []
    told = [each for each in verdicts if proved.is_whole or each.level == "fail"]
    yield from change_evaluations(key, told, instance=instance)


def refuse_disproved(export: Export, proved: Proved) -> None:
    """End the run in a failure when what it published is not what it should be; it stays published.

    Raises:
        Failure: never tried again, since another run is what replaces it.
    """
    if (fault := proved.disproof) is not None:
        raise dg.Failure(
            f"Export {export.name} is published, but {fault.text}",
            metadata={"rivet/code": fault.code, "rivet/exit_code": fault.exit_code},
            allow_retries=False,
        )
