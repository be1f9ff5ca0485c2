"""What Rivet knows of SQL Server without asking one."""

from rivet_resources.contracts.engine_facts import EngineFacts
from rivet_resources.extras import SQLSERVER

FACTS = EngineFacts(
    extra=SQLSERVER,
    schemes={"mssql": "sqlserver", "sqlserver": "sqlserver"},
    parser="tsql",
    create_index="CREATE INDEX {name} ON {relation} ({columns}); -- WITH (ONLINE = ON) where the edition has it",
    analyze="UPDATE STATISTICS {relation};",
    samples_bounds=True,
    # A database may not allow snapshots, and a page along a key is a statement.
    has_chunk_instants=False,
    holds_back="row versions stay in tempdb (READ_COMMITTED_SNAPSHOT, SNAPSHOT)",
    folds_texts=True,
    has_log=True,
)
