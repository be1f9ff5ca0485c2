"""`rivet check`: look at each export through its source's own planner, and say whether it could run well.

Belongs here: sessions, what goes side by side, one answer per export whatever happens to it. Not here: one export's dry
plan (`facts.py`), its change log (`change_log.py`), whose state and files it would meet (`run/admit/provenance.py`),
judging (`verdict.py`), words and exit codes (`report.py`).

No table is gone through, and nothing is changed. Exports of one source share a few sessions; a session that an error
broke is renewed.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rivet_assets.config.by_source import by_source
from rivet_assets.config.extras import missing_extras
from rivet_assets.modes.by_shard import kept_as, source_of_shard
from rivet_assets.modes.cdc import drain_of
from rivet_assets.preflight.change_log import log_findings
from rivet_assets.preflight.checked import Checked
from rivet_assets.preflight.column_types import TypeFact, refused_facts, type_facts
from rivet_assets.preflight.facts import PreflightContext, PreflightFacts, see
from rivet_assets.preflight.findings import findings
from rivet_assets.preflight.judged_rules import contract_findings, contract_lines, judged_rules
from rivet_assets.preflight.shards import join_shards, looked_at_as
from rivet_assets.preflight.snapshots import snapshot_findings
from rivet_assets.preflight.verdict import Judgement, judge, worst
from rivet_assets.run.admit.admission import provenance_in
from rivet_assets.run.admit.provenance import ForeseenRead, provenance_findings
from rivet_assets.run.admit.scope import bind
from rivet_assets.run.log_status import INTERACTIVE_LIMITS
from rivet_assets.run.masked_columns import lost_tags, lost_text
from rivet_assets.run.read_limits import limit_findings
from rivet_resources.contracts.evidence import Explained, Finding, Pressure
from rivet_resources.contracts.provenance import DatabaseIdentity
from rivet_resources.contracts.relation import Relation
from rivet_resources.contracts.settings import pace
from rivet_resources.contracts.source import Session, Source
from rivet_resources.errors import RivetError, StateError, UnsupportedColumn
from rivet_resources.fan_out import NoAnswer, into_lanes, side_by_side
from rivet_resources.shape.shape import schema_of
from rivet_resources.shape.transforms.mask_tags import TaggedColumn, tagged_columns
from rivet_resources.state.store import State, open_state, state_url

if TYPE_CHECKING:
    from rivet_assets.blocks.export import Export
    from rivet_assets.config.load import RivetConfig

SESSIONS = 4  # side by side at one source
EXPORTS_PER_SESSION = 8  # below which a further session is not worth its log-in
EACH_SECONDS = 30.0
APPLICATION = "rivet:check"


class CheckFailed(RivetError):
    """An export could not be looked at, for a reason that is not the source's."""

    code = "RIVET_CHECK_FAILED"


def check_exports(config: RivetConfig, names: Sequence[str] = (), *, with_types: bool = False) -> list[Checked]:
    """Check all exports, or these, in the order of the file; an error of one stops no other.

    Raises:
        ConfigError: an export is not known; the message lists those that are.
    """
    wanted = {config.export(name).name for name in names}
    exports = [export for export in config.exports if not names or export.name in wanted]
    # Before anything connects: an export whose driver is missing must not keep the others from being looked at.
    lacking = {export.name: error for export in exports if (error := missing_extras(config, [export])) is not None}
    ready = [export for export in exports if export.name not in lacking]
    state = _state(config)
    try:
        found = join_shards(_Look(config, state, with_types).all(by_source(config, ready)), ready)
        found |= {name: Checked(name, error=error) for name, error in lacking.items()}
        foreseen = provenance_findings(exports, {name: each.read for name, each in found.items()}, state)
        now = datetime.now(UTC)
        begun = {export.name: tuple(snapshot_findings(export, state=state, at=now)) for export in exports}
    finally:
        if state is not None:
            state.close()
    told = [(found[export.name], (*foreseen.get(export.name, ()), *begun[export.name])) for export in exports]
    return [replace(each, findings=(*more, *each.findings)) for each, more in told]


def facts_of_check(checked: Checked) -> dict[str, str | int | float | list[str]]:
    """Flatten for Dagster's metadata: plain values only; what is unknown is left out."""
    told: dict[str, Any] = {
        "verdict": checked.verdict,
        "strategy": checked.strategy or None,
        "reasons": list(checked.reasons) or None,
        "suggestions": list(checked.suggestions) or None,
        "warnings": [f"{each.name}: {each.text}" for each in checked.findings if each.status != "ok"] or None,
        "recommended_profile": checked.profile.value if checked.profile else None,
        "recommended_parallel": int(checked.parallel.value) if checked.parallel else None,
        "rows_estimate": checked.rows_estimate,
        "scan": ", ".join(dict.fromkeys(each.scan for each in checked.explained)) or None,
        "cursor_range": list(checked.cursor_range) if checked.cursor_range else None,
        "contract": list(contract_lines(checked.contract)) or None,
        "lossy_columns": [fact.column for fact in checked.types if fact.is_bad] or None,
        "error": str(checked.error) if checked.error else None,
    }
    return {key: value for key, value in told.items() if value is not None}


# --- sources and sessions ------------------------------------------------------------------------


def _pressure(source: Source) -> Pressure:
    """Ask a source how many connections it has."""
    with source.gauge(application=APPLICATION, pace=_hasty(source, None)) as gauge:
        return gauge.look()


def _hasty(source: Source, export: Export | None) -> Any:
    return pace(source.tuning, export.tuning if export else None).model_copy(update=INTERACTIVE_LIMITS)


def _no_answer(answer: object) -> CheckFailed:
    """Return why there is no answer; the text of an error that is not ours may hold a secret."""
    if isinstance(answer, NoAnswer):
        return CheckFailed(f"The source did not answer: {answer}. Check the network, and what the server waits for.")
    return CheckFailed(f"{type(answer).__name__} was raised, a bug of Rivet.")


def _state(config: RivetConfig) -> State | None:
    """Open the store where there is one; a check that cannot read it goes on without."""
    # A store of state is read where there is one, for the cursors in it, and never created.
    url = state_url(config.state_url, folder=config.folder)
    if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).is_file():
        return None
    try:
        return bind(config, open_state(url))
    except StateError:
        return None


@dataclass(frozen=True)
class _Look:
    """One check of some exports: what is the same for all of them."""

    config: RivetConfig
    state: State | None
    with_types: bool

    def all(self, places: Mapping[str, tuple[Source, list[Export]]]) -> dict[str, Checked]:
        """Look at all exports, the sources side by side; one whose source stays silent is answered for."""
        # Names of their own for each call: another one may be under way in this process.
        call = secrets.token_hex(3)
        gauges = {name: partial(_pressure, source) for name, (source, _) in places.items()}
        # Connections are counted before our own sessions are opened, which would count among them.
        pressures = side_by_side({f"gauge {call} {name}": ask for name, ask in gauges.items()}, seconds=EACH_SECONDS)
        found: dict[str, Checked] = {}
        lanes: dict[str, list[Export]] = {}
        asks: dict[str, Callable[[], None]] = {}
        for (name, (source, exports)), pressure in zip(places.items(), pressures.values(), strict=True):
            known = pressure if isinstance(pressure, Pressure) else None
            for number, lane in enumerate(into_lanes(exports, most=SESSIONS, each=EXPORTS_PER_SESSION)):
                ask = f"check {call} {name} {number}"
                lanes[ask], asks[ask] = lane, partial(self.lane, source, lane, known, found)
        # A second more for each export of the longest lane, so that many of them are not taken for a silent source.
        longest = max(map(len, lanes.values()), default=0)
        for ask, answer in side_by_side(asks, seconds=EACH_SECONDS + longest).items():
            for export in lanes[ask]:
                found.setdefault(looked_at_as(export), Checked(export.name, error=_no_answer(answer)))
        return found

    def lane(
        self, source: Source, exports: Sequence[Export], pressure: Pressure | None, found: dict[str, Checked]
    ) -> None:
        """Look at exports one after the other; each is in `found` as soon as it is known."""
        pending = list(exports)
        while pending:
            is_connected = False
            try:
                with source.session(application=APPLICATION, pace=_hasty(source, None)) as session:
                    identity = session.identity()
                    is_connected = True
                    while pending:
                        export = pending.pop(0)
                        checked = found[looked_at_as(export)] = self.one(export, source, session, pressure, identity)
                        # An error may have broken the session.
                        if checked.error is not None:
                            break
            except RivetError as error:
                if not is_connected:
                    # Nothing was ever connected: the next try would wait for the same time-out, once per export.
                    found.update({looked_at_as(export): Checked(export.name, error=error) for export in pending})
                    return

    def one(
        self, export: Export, source: Source, session: Session, pressure: Pressure | None, identity: DatabaseIdentity
    ) -> Checked:
        """Look at one export; whatever is raised is its answer."""
        place = PreflightContext(
            source,
            session,
            cursor=self._cursor(export),
            connections=pressure.connections if pressure else None,
            connections_limit=pressure.connections_limit if pressure else None,
        )
        try:
            tables = [self._table(each, table, place) for each, table in export.relations()]
            checked, name = _join_tables(export, tables), self.config.source_of(export)[0]
            limits = limit_findings(
                export, source, state=self.state, rows=checked.rows_estimate, at=datetime.now(UTC)
            )  # fmt: skip
            agreed = contract_findings(export, tables[0].relation)
            seen = [(one, table.relation) for (one, _), table in zip(export.relations(), tables, strict=True)]
            masked = tuple(each for one, relation in seen for each in _masked(one, relation, several=len(seen) > 1))
            lost = [finding for one, relation in seen for finding in self._lost_tags(one, relation)]
            checked = replace(checked, findings=(*lost, *agreed, *checked.findings, *limits), masked=masked)
            if (drain := drain_of(export)) is not None:
                looked = log_findings(drain, source, self.config, self.state)
                return replace(checked, findings=(*looked.findings, *checked.findings), read=looked.read)
            (table,) = tables
            shard = export.of_shard or next(iter(export.shards or ("",)))
            name, _ = source_of_shard(export, (name, source), shard)
            found = ForeseenRead(provenance_in(source, name, identity, table.relation), shard=shard)
            return replace(checked, read={kept_as(export, shard): found})
        except _Refused as refused:
            return Checked(export.name, types=refused.types, error=refused.error)
        except RivetError as error:
            return Checked(export.name, error=error)
        except Exception as error:
            # One export's bug must not hide what the others are like; its text may hold secrets.
            return Checked(export.name, error=_no_answer(error))

    def _lost_tags(self, export: Export, relation: Relation) -> tuple[Finding, ...]:
        """Return which columns were masked by a tag and have none any more: a run would be refused."""
        held = self.state.masked_columns(export.name) if self.state is not None and export.mask_tags else None
        lost = lost_tags(export, relation, held or {})
        fix = "Write the tag again, or name the column in `unmasked`."
        return (Finding("mask_tags", "fail", lost_text(export, relation, lost), fix),) if lost else ()

    def _table(self, export: Export, table: str | None, place: PreflightContext) -> _Table:
        relation = self._describe(export, table, place.session)
        seen = see(export, relation, place)
        if seen.plan.facts.explained is not None and export.params:
            shown = replace(seen.plan.facts.explained, statement=_hide_params(seen.plan.facts.explained, export))
            seen = replace(seen, plan=replace(seen.plan, facts=replace(seen.plan.facts, explained=shown)))
        judgement = judge(seen.plan.facts)
        types: tuple[TypeFact, ...] = ()
        if self.with_types:
            types = type_facts(relation, parts=schema_of(seen.extract), file_format=export.format)
        return _Table(export.name, relation, seen, judgement, types)

    def _describe(self, export: Export, table: str | None, session: Session) -> Relation:
        """Describe what is read.

        Raises:
            RivetError
        """
        query, rules = None if table else export.query, export.type_rules()
        try:
            return session.describe(table=table, query=query, params=export.params, rules=rules)
        except UnsupportedColumn as error:
            if not self.with_types:
                raise
            # Described once more with the refused columns as text, so that all that is wrong is told at once, and not
            # one column a run.
            lenient = replace(
                rules,
                on_unsupported="text",
                columns={k: rule.model_copy(update={"on_unsupported": None}) for k, rule in rules.columns.items()},
            )
            relation = session.describe(table=table, query=query, params=export.params, rules=lenient)
            raise _Refused(error, refused_facts(relation, rules)) from None

    def _cursor(self, export: Export) -> str | None:
        """Read how far the export has come, for the statement of its next run."""
        if self.state is None or not export.answers.keeps_cursor:
            return None
        held = self.state.cursor(export.name)
        return held.value if held else None


def _hide_params(explained: Explained, export: Export) -> str:
    """Return the statement with the names of the query's parameters where their values stand: one may be a secret."""
    statement = explained.statement
    for name, value in export.params.items():
        # As they stand in SQL, with doubled quotes: parameters were put in as literals.
        statement = statement.replace("'" + value.replace("'", "''") + "'", f":{name}")
    return statement


class _Refused(Exception):
    """A column cannot be exported as the rules say; the types are told all the same."""

    def __init__(self, error: RivetError, types: tuple[TypeFact, ...]) -> None:
        super().__init__(str(error))
        self.error, self.types = error, types


@dataclass(frozen=True)
class _Table:
    """What was seen of one table, or of the export's query."""

    name: str
    relation: Relation
    seen: PreflightFacts
    judgement: Judgement
    types: tuple[TypeFact, ...] = field(default=())


def _masked(export: Export, relation: Relation, *, several: bool) -> Iterator[TaggedColumn]:
    """Yield which columns are masked by a tag; named with their table where there are several.

    Raises:
        ColumnTagRefused
    """
    for each in tagged_columns(export.steps, relation) or ():
        yield replace(each, name=f"{relation.name}.{each.name}") if several else each


def _join_tables(export: Export, tables: Sequence[_Table]) -> Checked:
    """Join what was seen of an export's tables: the worst of them decides."""
    verdict = worst([table.judgement.verdict for table in tables])
    decisive = next(table for table in tables if table.judgement.verdict == verdict)
    several = len(tables) > 1

    def told(table: _Table, text: str) -> str:
        return f"{table.name}: {text}" if several else text

    rows = [table.seen.plan.facts.rows for table in tables]
    ends = decisive.seen.ends if not several else None
    return Checked(
        export.name,
        verdict,
        reasons=tuple(told(table, reason) for table in tables for reason in table.judgement.reasons),
        suggestions=tuple(dict.fromkeys(s for table in tables for s in table.judgement.suggestions)),
        findings=tuple(
            replace(found, text=told(table, found.text))
            for table in tables
            for found in findings(replace(table.seen.plan, access=table.judgement.access))
        ),
        strategy=decisive.seen.plan.facts.strategy,
        profile=decisive.judgement.profile,
        parallel=decisive.judgement.parallel,
        rows_estimate=None if None in rows else sum(row for row in rows if row is not None),
        explained=tuple(t.seen.plan.facts.explained for t in tables if t.seen.plan.facts.explained is not None),
        cursor_range=(ends.low, ends.high) if ends else None,
        range_is_exact=bool(ends and ends.is_exact),
        types=tuple(fact for table in tables for fact in table.types),
        contract=judged_rules(export.contract),
    )
