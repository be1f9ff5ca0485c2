"""`RivetResource`: Rivet in a project's own ops and assets: run exports, read what they committed, share their Spark.

Belongs here: the resource that people put under a name of theirs. Not here: the one that our assets bring along
(`dagster/resources.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import dagster as dg
import pyarrow as pa

from rivet_assets.config.selection import due
from rivet_assets.dagster.code_first import Config, load_given
from rivet_assets.launch.outcome import Outcome
from rivet_assets.launch.run_exports import run_exports
from rivet_resources.commit.shards import shard_roots
from rivet_resources.dagster.frames import Parts, read_as
from rivet_resources.dagster.io_manager import wanted
from rivet_resources.dagster.resource import Rivet


class RivetResource(Rivet):
    """Runs exports and reads their files, from any op or asset; `spark_session` is the Spark that exports run on."""

    def run(
        self, config: Config, *exports: str, partitions: Sequence[str] = (),
        tell: Callable[[str], None] = print,
    ) -> list[Outcome]:  # fmt: skip
        """Run these exports (all, when none is named) as `rivet run` does; one Outcome each.

        Dagster records the runs where DAGSTER_HOME names an instance, so the exports' own pages show them.

        Args:
            partitions: keys or ranges `A...B` of the windows to run; none: those that are due.
            tell: takes a line for each export, such as `context.log.info`.

        Raises:
            ConfigError: the file is wrong, an export or a partition is not known; nothing ran.
            Failure: an export failed; the others were run.
        """
        outcomes = run_exports(load_given(config), names=exports, partitions=partitions)
        for each in outcomes:
            tell(f"{each.export}: {each.status}, {each.rows} rows{f', {each.message}' if each.message else ''}")
        failed = [each for each in outcomes if not each.success]
        if failed:
            told = "; ".join(f"{each.export}: {each.message if each.code else each.cause}" for each in failed)
            raise dg.Failure(
                f"{len(failed)} of {len(outcomes)} exports failed: {told}",
                metadata={"rivet/code": failed[0].code, "rivet/exit_code": failed[0].exit_code},
                allow_retries=False,
            )
        return outcomes

    def load(
        self, config: Config, export: str, *, as_type: Any = pa.Table,
        partitions: Sequence[str] | None = None,
    ) -> Any:  # fmt: skip
        """Return the committed rows of an export: of these windows, or all there is; of snapshots the newest.

        Args:
            as_type: what they come as: any type that an input of an asset may be annotated with.
            partitions: keys or ranges `A...B`.

        Raises:
            ConfigError: there is no such export or partition, or it cannot be read as that.
            ManifestUnreadable: a window, or the whole export, was never committed.
        """
        found = load_given(config)
        each = found.export(export)
        keys = due(found, each, partitions) if partitions is not None else None
        root = each.destination.root(each.name)
        shards = shard_roots(each.destination, each.name, (each.shards or ()) if each.is_apart else ())
        chosen = wanted(root, keys, export=each.name, annotation=as_type, shards=shards)
        parts = Parts(root, chosen, self.session)
        return read_as(as_type, parts, asset=export)
