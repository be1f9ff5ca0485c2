"""What Rivet knows of SQL Server without asking one."""

from rivet_resources.contracts.engine_facts import EngineFacts

FACTS = EngineFacts(
    packages=("mssql-python",),
    schemes={"mssql": "sqlserver", "sqlserver": "sqlserver"},
    parser="tsql",
    create_index="CREATE INDEX {name} ON {relation} ({columns}); -- WITH (ONLINE = ON) where the edition has it",
    analyze="UPDATE STATISTICS {relation};",
    samples_bounds=True,
    folds_texts=True,
    has_log=True,
)
