"""Which MySQL or MariaDB installation a server belongs to, told by variables that every user may read.

Belongs here: reading these. Not here: asking (session.py), comparing (rivet_resources/state/provenances.py).

A server's own UUID changes with every failover, and exports often read whichever replica a balancer gives them. A
replica's set of executed GTIDs names the servers whose transactions it has, so the UUIDs of both are names of one
installation. Without GTIDs (`gtid_mode=OFF`) each replica looks like an installation of its own.

MariaDB has no UUID that lasts (`server_uid` is made of a network card's address). Its servers are named as its GTIDs
name them, by domain and server id: what was never configured is the same everywhere, and then tells nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

NAMES = ("server_uuid", "gtid_executed", "server_id", "gtid_domain_id", "gtid_binlog_state", "gtid_slave_pos")
VARIABLES = "SHOW GLOBAL VARIABLES WHERE Variable_name IN (" + ", ".join(f"'{name}'" for name in NAMES) + ")"

# MySQL Reference Manual, "GTID Format and Storage": uuid[:tag]:interval…, separated by commas.
UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# MariaDB Knowledge Base, "Global Transaction ID": domain-server-sequence, separated by commas.
TRIPLE = re.compile(r"(\d+)-(\d+)-\d+")


def servers_of(variables: Mapping[str, str]) -> tuple[str, ...]:
    """Name the server first, then those whose transactions it has; () where it does not say."""
    if own := variables.get("server_uuid", "").lower():
        # A replica names the servers whose transactions it has: that is what makes it and its primary one
        # installation.
        others = sorted(set(UUID.findall(variables.get("gtid_executed", "").lower())) - {own})
        return tuple(f"server_uuid:{uuid}" for uuid in (own, *others))
    if not variables.get("server_id"):
        return ()
    mine = (variables.get("gtid_domain_id", "0"), variables["server_id"])
    told = ",".join(variables.get(name, "") for name in ("gtid_binlog_state", "gtid_slave_pos"))
    pairs = [mine, *sorted(set(TRIPLE.findall(told)) - {mine})]
    return tuple(f"mariadb:server_id={server},domain={domain}" for domain, server in pairs)
