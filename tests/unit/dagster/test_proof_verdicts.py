"""What the check `preflight` says in Dagster of what `rivet check` found."""

from __future__ import annotations

import pytest

from rivet_assets.dagster.checks.proof_verdicts import preflight_verdict
from rivet_assets.preflight.checked import Checked
from rivet_resources.contracts.evidence import Finding
from rivet_resources.errors import SourceError

CASES = [
    (Checked("orders", "ACCEPTABLE"), "ok"),
    (Checked("orders", "ACCEPTABLE", findings=(Finding("index", "warn", "none"),)), "ok"),
    (Checked("orders", "ACCEPTABLE", findings=(Finding("provenance", "fail", "of another database"),)), "fail"),
    (Checked("orders", "DEGRADED"), "warn"),
    (Checked("orders", "UNSAFE"), "fail"),
    (Checked("orders", error=SourceError("no such table")), "fail"),
]


@pytest.mark.parametrize(("checked", "level"), CASES)
def test_preflight_fails_where_the_command_does(checked: Checked, level: str) -> None:
    """What a run would refuse is a failure, however well it would be read; it is told."""
    found = preflight_verdict("preflight", checked, plan={})

    assert level == found.level
    assert all(each.text in found.text for each in checked.findings if each.status == "fail")
