"""Telling people of an export that ended well in a Dagster run: from inside the run, since no sensor sees its figures.

Belongs here: when a run tells at all, and since when its records count. Not here: what is told (`notify/messages.py`),
runs that failed (`failure_sensor.py`), `rivet run`, which tells at its end (`launch/finish.py`).
"""

from collections import defaultdict
from datetime import UTC, datetime

import dagster as dg

from rivet_assets.config.load import RivetConfig
from rivet_assets.dagster.run_tags import partition_of
from rivet_assets.notify.notify import Whereabouts, notify_success, wants
from rivet_resources.state.store import State
from rivet_resources.webhooks import Unanswered

STARTED_BY = "rivet/started_by"  # run tag
# Its value where `launch/run_exports.py` started the run, and `launch/finish.py` tells of it.
RIVET_RUN = "rivet run"

# By run: after a night without the source hundreds of exports of one run recover one after another, and each would
# wait for a receiver that hangs.
_unanswered: defaultdict[str, Unanswered] = defaultdict(Unanswered)


def tell_success(
    config: RivetConfig, export: str, key: dg.AssetKey, state: State, context: dg.AssetExecutionContext
) -> None:
    """Notify people of drift, degradation or recovery, if anybody asked to hear of it; trouble goes to its log."""
    if context.run.tags.get(STARTED_BY) == RIVET_RUN or not wants(config, "schema_change", "degraded", "recovered"):
        return
    record = context.instance.get_run_record_by_id(context.run_id)
    began = record.start_time if record is not None and record.start_time is not None else None
    since = datetime.fromtimestamp(began, UTC) if began is not None else datetime.now(UTC)
    where = whereabouts(key, context.run)
    unanswered = _unanswered[context.run_id]
    notify_success(
        config, export, state=state, since=since, tell=context.log.warning, where=where, unanswered=unanswered
    )


def whereabouts(key: dg.AssetKey, run: dg.DagsterRun) -> Whereabouts:
    """Name the asset of an export and its run, so that a message leads there."""
    return Whereabouts(key.to_user_string(), partition_of(run), run.run_id)
