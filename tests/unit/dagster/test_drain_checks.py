"""What the checks of change capture say, and how Dagster hears it."""

import dagster as dg
import pytest
from dagster._core.definitions.automation_tick_evaluation_context import build_run_requests
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run_iterator

from rivet_assets.dagster.checks.drain_checks import change_check_specs, change_evaluations, change_results
from rivet_assets.dagster.checks.on_demand import OnDemand, answer, is_asked_alone, on_demand_specs, provable
from rivet_assets.run.judge.drain_verdicts import (
    MIRROR,
    MirrorComparison,
    lag_verdict,
    mirror_verdict,
    prerequisites_verdict,
    sequence_verdict,
    slot_verdict,
)
from rivet_assets.run.judge.quality import blocks
from rivet_resources.contracts.change_log import Lag
from rivet_resources.contracts.evidence import Finding

KEY = dg.AssetKey(["shop", "orders"])


@pytest.mark.parametrize(
    ("budget", "expected"),
    [(None, "ok"), (0.0, "ok"), (0.49, "ok"), (0.5, "warn"), (0.79, "warn"), (0.8, "fail"), (1.3, "fail")],
)
def test_lag_warns_from_half_of_the_retention_and_fails_from_four_fifths(budget, expected):
    """A source that states no limit cannot run out of it."""
    verdict = lag_verdict(Lag(unread_bytes=10, budget=budget))

    assert (expected, expected == "ok") == (verdict.level, verdict.passed)
    assert ("Drain more often" in verdict.text) == (expected != "ok")


def test_lag_tells_only_what_the_engine_knows():
    """Unknown numbers are left out, so that no plot shows a zero nobody measured."""
    verdict = lag_verdict(Lag(unread_changes=1200, seconds=3.4))

    assert {"unread_changes": 1200, "seconds": 3.4} == verdict.facts
    assert "1,200 changes unread, 3 s behind" in verdict.text
    assert "cannot tell" in lag_verdict(Lag()).text


@pytest.mark.parametrize(
    ("status", "budget", "expected"),
    [
        ("reserved", 0.1, "ok"),
        ("reserved", 0.6, "warn"),
        ("extended", 0.1, "warn"),
        ("unreserved", 0.1, "fail"),
        ("lost", None, "fail"),
        (None, 0.9, "fail"),
        (None, None, "ok"),
    ],
)
def test_slot_is_judged_by_what_the_server_says_then_by_the_budget(status, budget, expected):
    """`wal_status` is the server's own word on whether it will keep the log."""
    verdict = slot_verdict(Lag(held_bytes=5, budget=budget, facts={"wal_status": status} if status else {}))

    assert expected == verdict.level
    assert (budget or 0.0) == verdict.observed
    assert verdict.text.startswith("5 bytes kept")


def test_slot_budget_is_plotted_beside_its_limit_in_one_unit() -> None:
    """A share beside a share; bytes are in the text."""
    verdict = slot_verdict(Lag(held_bytes=5_000_000, budget=0.25))

    assert (verdict.observed, verdict.threshold) == (0.25, 0.8)
    assert "5,000,000 bytes kept" in verdict.text


def test_lost_slot_asks_for_a_snapshot_and_not_for_more_drains():
    """What is gone does not come back by reading faster."""
    text = slot_verdict(Lag(facts={"wal_status": "lost"})).text

    assert "only a new snapshot helps" in text
    assert "Drain more often" not in text


CHAIN = [(None, "0a"), ("0a", "10"), ("10", "2f")]


@pytest.mark.parametrize(
    ("links", "disorder", "gaps", "overlaps"),
    [
        ([], 0, 0, 0),
        (CHAIN, 0, 0, 0),
        (list(reversed(CHAIN)), 0, 0, 0),
        ([*CHAIN, ("2f", "2f")], 0, 0, 0),
        ([CHAIN[0], CHAIN[2]], 0, 1, 0),
        ([*CHAIN, ("0b", "11")], 0, 0, 2),
        ([("10", "2f"), ("2f", "30")], 0, 0, 0),
        (CHAIN, 3, 0, 0),
    ],
)
def test_windows_chain_and_rows_stand_in_order(links, disorder, gaps, overlaps):
    """Each window begins where another ended; its order in the listing does not matter."""
    verdict = sequence_verdict(links, disorder=disorder, rows=7)

    assert {"gaps": gaps, "overlaps": overlaps, "disorder": disorder} == verdict.facts
    assert (gaps + overlaps + disorder == 0) == verdict.passed
    assert ("fail" if gaps + overlaps + disorder else "ok") == verdict.level


def test_gap_names_its_ends():
    """Somebody has to look there."""
    assert "a gap between 0a and 10" in sequence_verdict([CHAIN[0], CHAIN[2]], disorder=0, rows=0).text


def test_mirror_counts_what_differs_and_names_no_key():
    """Equal sums of rows prove nothing: one missing and one extra are two."""
    verdict = mirror_verdict(MirrorComparison(10, 10, missing=1, extra=1, different=2, position="0/AB"))

    assert (False, 4, "fail") == (verdict.passed, verdict.observed, verdict.level)
    assert "1 missing, 1 extra, 2 different" in verdict.text
    assert mirror_verdict(MirrorComparison(10, 10, 0, 0, 0)).passed


def test_prerequisites_are_one_check_with_every_fix():
    """A warning alone does not fail it as an error would."""
    findings = [
        Finding("wal_level", "ok", "logical"),
        Finding("identity", "warn", "deletes carry the key only", "ALTER TABLE orders REPLICA IDENTITY FULL"),
    ]

    verdict = prerequisites_verdict(findings)

    assert ("warn", 1, 2) == (verdict.level, verdict.observed, verdict.facts["checked"])
    assert "→ ALTER TABLE orders REPLICA IDENTITY FULL" in verdict.text
    assert "fail" == prerequisites_verdict([*findings, Finding("slot", "fail", "gone")]).level
    assert "all 1 hold" == prerequisites_verdict(findings[:1]).text
    assert prerequisites_verdict([]).text.startswith("not asked")


def test_no_check_of_changes_keeps_a_window_back():
    """Changes that were read are published whatever the lag is."""
    verdicts = [lag_verdict(Lag(budget=1.0)), sequence_verdict(CHAIN[::2], disorder=1, rows=1)]

    assert not any(verdict.passed for verdict in verdicts)
    assert not blocks(verdicts)
    assert not any(spec.blocking for spec in change_check_specs(KEY))


def test_failures_are_errors_and_warnings_warnings():
    """The UI paints them red and orange."""
    levels = [0.1, 0.6, 0.9]

    results = list(change_results(KEY, [lag_verdict(Lag(budget=budget)) for budget in levels]))

    severities = [dg.AssetCheckSeverity.WARN, dg.AssetCheckSeverity.WARN, dg.AssetCheckSeverity.ERROR]
    assert severities == [each.severity for each in results]
    assert [True, False, False] == [each.passed for each in results]


def test_every_verdict_has_a_declared_check():
    """An evaluation without its definition would be invisible."""
    verdicts = [lag_verdict(Lag()), slot_verdict(Lag()), sequence_verdict([], disorder=0, rows=0)]

    assert [spec.name for spec in change_check_specs(KEY)] == [verdict.check for verdict in verdicts]


def test_evaluation_outside_a_run_is_tied_to_the_newest_materialization():
    """Without one it has no colour in the UI."""
    with dg.DagsterInstance.ephemeral() as instance:
        (before,) = change_evaluations(KEY, [lag_verdict(Lag(budget=0.9))], instance=instance)
        instance.report_runless_asset_event(dg.AssetMaterialization(KEY))
        (after,) = change_evaluations(KEY, [lag_verdict(Lag(budget=0.9))], instance=instance)
        instance.report_runless_asset_event(after)
        stored = instance.event_log_storage.get_latest_asset_check_execution_by_key([dg.AssetCheckKey(KEY, "lag")])

    assert before.target_materialization_data is None
    assert after.target_materialization_data is not None
    assert "FAILED" == stored[dg.AssetCheckKey(KEY, "lag")].status.name


EVALUATED = "ASSET_CHECK_EVALUATION"
RESOURCES = {"rivet": dg.ResourceDefinition.none_resource()}


def mirror_that_is(found: MirrorComparison) -> dg.AssetsDefinition:
    """Make a mirror that has compared itself."""
    proofs = {KEY: {MIRROR: OnDemand("Reads all of both.", lambda context: mirror_verdict(found))}}

    @dg.multi_asset(
        specs=[dg.AssetSpec(KEY, automation_condition=dg.AutomationCondition.missing(), skippable=True)],
        check_specs=on_demand_specs(proofs),
        can_subset=True,
        required_resource_keys={"rivet"},
    )
    def mirror(context: dg.AssetExecutionContext):
        if is_asked_alone(context):
            yield from answer(context, proofs)

    return provable(mirror)


def test_mirror_check_runs_on_demand_and_only_then():
    """It reads a whole table, so it has no condition that would start it."""
    found = MirrorComparison(source_rows=3, mirror_rows=2, missing=1, extra=0, different=0)
    defs = dg.Definitions(assets=[mirror_that_is(found)], resources=RESOURCES, executor=dg.in_process_executor)
    asked = frozenset({dg.AssetCheckKey(KEY, MIRROR)})
    whole = defs.resolve_implicit_global_asset_job_def()
    job = whole.get_subset(asset_selection=set(), asset_check_selection=set(asked))

    with dg.DagsterInstance.ephemeral() as instance:
        run = instance.create_run_for_job(job, asset_selection=frozenset())
        by_name = run._replace(asset_check_selection=asked)
        events = list(execute_run_iterator(InMemoryJob(job), by_name, instance))

    (evaluation,) = [event.asset_check_evaluation_data for event in events if event.event_type_value == EVALUATED]
    assert (False, dg.AssetCheckSeverity.ERROR, 1) == (
        evaluation.passed, evaluation.severity, evaluation.metadata["missing"].value
    )  # fmt: skip


def test_mirror_check_does_not_ride_along_with_its_mirror():
    """Automation runs the checks of what it materializes, but for those with a condition of their own."""
    found = MirrorComparison(source_rows=3, mirror_rows=3, missing=0, extra=0, different=0)

    with dg.DagsterInstance.ephemeral() as instance:
        defs = dg.Definitions(assets=[mirror_that_is(found)], resources=RESOURCES)
        asked = dg.evaluate_automation_conditions(defs, instance)
        graph = defs.resolve_asset_graph()
        subsets = [result.true_subset.convert_to_serializable_subset() for result in asked.results]
        (request,) = build_run_requests([each for each in subsets if each.size], graph, {}, emit_backfills=False)

    assert [KEY] == request.asset_selection
    assert [] == request.asset_check_keys  # None would be all of them
