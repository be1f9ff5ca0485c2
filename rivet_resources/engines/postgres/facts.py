"""What Rivet knows of PostgreSQL without asking one."""

from rivet_resources.contracts.engine_facts import EngineFacts
from rivet_resources.extras import POSTGRES

FACTS = EngineFacts(
    extra=POSTGRES,
    schemes={"postgresql": "postgres", "postgres": "postgres"},
    parser="postgres",
    create_index="CREATE INDEX CONCURRENTLY ON {relation} ({columns});",
    # An index of a partitioned table cannot be built concurrently.
    create_partitioned_index="CREATE INDEX ON {relation} ({columns});",
    analyze="ANALYZE {relation};",
    samples_bounds=True,
    pages_cursors=True,
    holds_back="vacuum keeps the dead rows of every table of the database (xmin)",
    reads_blocks=True,
    has_log=True,
    has_slots=True,
)
