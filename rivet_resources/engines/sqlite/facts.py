"""What Rivet knows of SQLite without opening a file."""

from rivet_resources.contracts.engine_facts import EngineFacts

FACTS = EngineFacts(
    schemes={"sqlite": "sqlite"},
    file_endings=(".db", ".sqlite", ".sqlite3", ".db3"),
    parser="sqlite",
    create_index="CREATE INDEX {name} ON {relation} ({columns});",
    analyze="ANALYZE;",
    pages_cursors=True,
    holds_back="the write-ahead log grows, since no checkpoint can pass the reader",
    tells_sizes=False,
    types_bind=False,
    default_schema="main",
)
