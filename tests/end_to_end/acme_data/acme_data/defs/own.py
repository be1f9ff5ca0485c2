"""What the project has of its own, under names that Rivet could have thought of."""

import dagster as dg

from rivet_assets import RivetResource


@dg.op(required_resource_keys={"rivet", "lake"})
def repaired(context: dg.OpExecutionContext) -> str:
    """Use both resources."""
    return f"{context.resources.rivet} {context.resources.lake}"


@dg.op
def rows_of_orders(context: dg.OpExecutionContext, exporter: RivetResource) -> int:
    """Run an export from an op, and count what it committed."""
    exporter.run("acme_data/billing.yaml", "invoices", tell=context.log.info)
    return int(exporter.load("acme_data/billing.yaml", "invoices").num_rows)


@dg.job(name="repair")
def own_repair() -> None:
    """A job called `repair`."""
    repaired()


@dg.job
def count_invoices() -> None:
    """A job that runs an export."""
    rows_of_orders()


@dg.schedule(job=own_repair, cron_schedule="0 6 * * *")
def drains() -> dg.RunRequest:
    """A schedule called `drains`."""
    return dg.RunRequest()


@dg.definitions
def own() -> dg.Definitions:
    """Load them."""
    return dg.Definitions(
        jobs=[own_repair, count_invoices],
        schedules=[drains],
        resources={"rivet": "of acme", "lake": "of acme too", "exporter": RivetResource()},
    )
