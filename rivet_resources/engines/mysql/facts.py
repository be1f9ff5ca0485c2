"""What Rivet knows of MySQL and MariaDB without asking one."""

from rivet_resources.contracts.engine_facts import EngineFacts
from rivet_resources.extras import MYSQL

FACTS = EngineFacts(
    extra=MYSQL,
    schemes={"mysql": "mysql", "mariadb": "mariadb"},
    parser="mysql",
    create_index="CREATE INDEX {name} ON {relation} ({columns});",
    analyze="ANALYZE TABLE {relation};",
    folds_texts=True,
    holds_back="InnoDB keeps old versions of all changed rows (undo log)",
    schema_is_database=True,
    has_log=True,
)
