"""What `rivet doctor` asks a source: who signs in, how the server looks, whether its tables may be read.

Belongs here: one source with all its exports. Not here: what one engine is asked (`engines/*/preflight.py`), change
logs (`change_log.py`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rivet_assets.doctor.row import Row, Told, fault_row, finding_rows, spell_count
from rivet_assets.modes.by_shard import kept_as
from rivet_assets.run.admit.admission import provenance_in
from rivet_assets.run.admit.provenance import ForeseenRead
from rivet_assets.run.log_status import INTERACTIVE_LIMITS
from rivet_resources.contracts.provenance import DatabaseIdentity
from rivet_resources.contracts.relation import Relation
from rivet_resources.contracts.settings import pace
from rivet_resources.contracts.source import Session, Source
from rivet_resources.engines.shared import credentials
from rivet_resources.engines.shared.server import Server
from rivet_resources.errors import RivetError

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export

SKEW_SECONDS = 5.0  # more is told: windows of time and lags are compared across the two clocks
WRITTEN = "stands in the file for every reader to see"  # of `config/warnings.py`

Asked = tuple["Export", str | None]


def source_rows(
    name: str, source: Source, exports: Sequence[Export], *, warnings: Sequence[str],
    tell: Told = lambda export, read: None,
) -> list[Row]:  # fmt: skip
    """Connect, compare clocks, judge the server, describe what is exported.

    After a refusal the rest is asked on a new line, as the refusal may have broken this one.

    Args:
        tell: told what a run of each export would read; of drains, which ask their log, nothing.
    """
    about, pending = f"source {name}", list(_relations(exports))
    rows = [*_credentials(about, source, exports, warnings)]
    hasty = pace(source.tuning, None).model_copy(update=INTERACTIVE_LIMITS)
    is_connected = False
    tables: list[Row] = []
    try:
        while pending or not is_connected:
            with source.session(application="rivet doctor", pace=hasty, snapshot=False) as session:
                if not is_connected:
                    rows += [Row("connect", "ok", f"{source.type}, signed in", about=about), _clock(session, about)]
                    is_connected = True
                    rows += _server(session, about, source, exports)
                identity: DatabaseIdentity | None = None
                while pending and (asked := _describe(session, *pending.pop(0), tables)):
                    export, relation = asked
                    if not export.answers.follows_log:
                        identity = identity or session.identity()
                        shard = export.of_shard or next(iter(export.shards or ("",)))
                        read = ForeseenRead(provenance_in(source, name, identity, relation), shard=shard)
                        tell(export, {kept_as(export, shard): read})
    except RivetError as error:
        rows.append(fault_row(about, "connect", error))
    return [*rows, *_with_script(tables, rows)]


def _credentials(about: str, source: Source, exports: Sequence[Export], warnings: Sequence[str]) -> Iterator[Row]:
    """Yield where user and password come from; a warning of the file says whether a secret stands in it."""
    if isinstance(source, Server):
        owners = {f"sources.{about.removeprefix('source ')}:", "source:", *(f"exports.{e.name}:" for e in exports)}
        is_written = any(WRITTEN in told and any(f" {owner} " in told for owner in owners) for told in warnings)
        yield from finding_rows(about, credentials.findings(source, is_written=is_written), category="config")


def _clock(session: Session, about: str) -> Row:
    before = time.time()
    theirs = session.now()
    # Half-way between question and answer, when the server will have looked at its clock.
    ours = datetime.fromtimestamp((before + time.time()) / 2, UTC)
    skew = (theirs - ours).total_seconds()
    if abs(skew) < SKEW_SECONDS:
        return Row("clock", "ok", f"{abs(skew):.1f} s apart", about=about)
    ahead = "ahead of" if skew > 0 else "behind"
    fix = "Set both clocks by NTP; until then lags and the newest windows of time are off by as much."
    return Row("clock", "warn", f"the source's clock is {abs(skew):.0f} s {ahead} this machine's", fix, about)


def _server(session: Session, about: str, source: Source, exports: Sequence[Export]) -> list[Row]:
    """Let the engine judge its server; what it cannot ask is one row, and the tables are still looked at."""
    tables = list(dict.fromkeys(table for _, table in _relations(exports) if table))
    widest = max((export.parallel for export in exports), default=1)
    widest = min(widest, getattr(source, "max_connections", None) or widest)
    try:
        findings = session.examine(tables=tables, connections=widest)
    except RivetError as error:
        return [replace(fault_row(about, "server", error), status="warn")]
    return [
        replace(row, category="permission") if row.name == "grants" else row
        for row in finding_rows(about, findings, category="server")
    ]


def _relations(exports: Iterable[Export]) -> Iterator[Asked]:
    for export in exports:
        for _, table in export.relations():
            yield export, table


def _describe(session: Session, export: Export, table: str | None, rows: list[Row]) -> tuple[Export, Relation] | None:
    """Look a table or query up; None when it was refused."""
    about, name = f"export {export.name}", f"table {table}" if table else "query"
    query = None if table else export.query
    try:
        relation = session.describe(table=table, query=query, params=export.params, rules=export.type_rules())
    except RivetError as error:
        rows.append(fault_row(about, name, error))
        return None
    rows.append(Row(name, "ok", spell_count(len(relation.columns), "column"), about=about))
    return export, relation


def _with_script(described: Sequence[Row], rows: Sequence[Row]) -> Iterator[Row]:
    """Yield the rows of tables; where they may not be read, with the one script for all of them as the fix."""
    script = next((row.fix for row in rows if row.name == "grants"), "")
    for row in described:
        yield replace(row, fix=script) if script and row.category == "permission" else row
