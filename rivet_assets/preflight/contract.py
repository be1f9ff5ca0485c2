"""`rivet contract`: an export's contract and its table at the source, as they are now; no row is read.

Belongs here: asking the source for columns, and judging them. Not here: what a contract means
(`run/judge/contract_rules.py`), the document (`scaffold/odcs.py`), printing (`cli/commands/contract.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from rivet_assets.modes.by_shard import source_of_shard
from rivet_assets.run.judge.contract_rules import columns_verdict, contract_rules
from rivet_resources.contracts.relation import Relation
from rivet_resources.contracts.settings import pace
from rivet_resources.errors import ConfigError
from rivet_resources.shape.shape import planned
from rivet_resources.write.row_rules import RowRuleCount, RowsAside

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_assets.config.load import RivetConfig
    from rivet_assets.run.judge.quality import Verdict


@dataclass(frozen=True)
class CheckedContract:
    """How a contract fits the table as it is now."""

    export: str
    columns: Verdict
    rules: int  # that windows are judged by, beside the columns
    not_checked: tuple[str, ...]


def check_contract(config: RivetConfig, name: str) -> CheckedContract:
    """Judge columns and types of an export's table by its contract, and see that its rules fit them.

    Raises:
        ConfigError: the export has no contract, or follows a log.
        TransformError: a rule does not fit its column.
        SourceError: the source does not answer, or refuses.
    """
    export = config.export(name)
    if export.contract is None:
        raise ConfigError(
            f"Export {name} has no `contract:`. Write one, or begin with `rivet contract export -e {name}`.",
            codes=("RIVET_CONFIG_CONTRACT",),
        )
    relation, shaped = look(config, export)
    verdict = columns_verdict(export.contract, shaped, relation)
    counted = export.contract.counted(shaped)
    # Raises, as the next one.
    RowRuleCount(shaped, counted)
    RowsAside(shaped, counted.aside)
    rules = len(contract_rules(export.contract))
    return CheckedContract(name, verdict, rules, export.contract.not_checked)


def look(config: RivetConfig, export: Export) -> tuple[Relation, pa.Schema]:
    """Return what an export reads, by the catalog, and the columns that its parts have, without Rivet's own.

    Raises:
        ConfigError: the export follows a log, whose tables are several.
        SourceError: the source does not answer, or refuses.
        TransformError: a step does not fit the columns.
    """
    if export.answers.follows_log:
        raise ConfigError(
            f"Export {export.name} follows a log and keeps changes; contracts are about rows. Name an export of the "
            f"table in another mode.",
            codes=("RIVET_CONFIG_CONTRACT",),
        )
    source = config.source_of(export)[1]
    for shard in tuple(export.shards or ())[:1]:  # all have one shape
        source = source_of_shard(export, ("", source), shard)[1]
    # Someone waits for the answer.
    paced = pace(source.tuning, export.tuning).model_copy(update={"max_retries": 0})
    with source.session(application="rivet contract", pace=paced, snapshot=False) as session:
        relation = session.describe(
            table=export.table, query=export.query, params=export.params, rules=export.type_rules()
        )
    return relation, planned(relation, export.steps).schema
