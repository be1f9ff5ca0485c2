"""Time zones as SQL Server names them: Windows' names, on Linux too.

Belongs here: the table from IANA names. Source: Unicode CLDR, supplemental/windowsZones.xml, the zones people write.
"""

from __future__ import annotations

from collections.abc import Mapping

from rivet_resources.errors import ConfigError

WINDOWS: Mapping[str, str] = {
    "UTC": "UTC", "Etc/UTC": "UTC", "GMT": "UTC",
    "Europe/London": "GMT Standard Time", "Europe/Dublin": "GMT Standard Time", "Europe/Lisbon": "GMT Standard Time",
    "Europe/Berlin": "W. Europe Standard Time", "Europe/Vienna": "W. Europe Standard Time",
    "Europe/Zurich": "W. Europe Standard Time", "Europe/Rome": "W. Europe Standard Time",
    "Europe/Amsterdam": "W. Europe Standard Time", "Europe/Stockholm": "W. Europe Standard Time",
    "Europe/Oslo": "W. Europe Standard Time", "Europe/Paris": "Romance Standard Time",
    "Europe/Madrid": "Romance Standard Time", "Europe/Brussels": "Romance Standard Time",
    "Europe/Copenhagen": "Romance Standard Time", "Europe/Prague": "Central Europe Standard Time",
    "Europe/Budapest": "Central Europe Standard Time", "Europe/Belgrade": "Central Europe Standard Time",
    "Europe/Warsaw": "Central European Standard Time", "Europe/Athens": "GTB Standard Time",
    "Europe/Bucharest": "GTB Standard Time", "Europe/Helsinki": "FLE Standard Time", "Europe/Kyiv": "FLE Standard Time",
    "Europe/Kiev": "FLE Standard Time", "Europe/Riga": "FLE Standard Time", "Europe/Vilnius": "FLE Standard Time",
    "Europe/Tallinn": "FLE Standard Time", "Europe/Sofia": "FLE Standard Time",
    "Europe/Istanbul": "Turkey Standard Time", "Europe/Minsk": "Belarus Standard Time",
    "Europe/Moscow": "Russian Standard Time", "Asia/Dubai": "Arabian Standard Time",
    "Asia/Karachi": "Pakistan Standard Time", "Asia/Kolkata": "India Standard Time",
    "Asia/Calcutta": "India Standard Time", "Asia/Dhaka": "Bangladesh Standard Time",
    "Asia/Bangkok": "SE Asia Standard Time", "Asia/Jakarta": "SE Asia Standard Time",
    "Asia/Shanghai": "China Standard Time", "Asia/Hong_Kong": "China Standard Time",
    "Asia/Singapore": "Singapore Standard Time", "Asia/Tokyo": "Tokyo Standard Time",
    "Asia/Seoul": "Korea Standard Time", "Asia/Jerusalem": "Israel Standard Time", "Asia/Riyadh": "Arab Standard Time",
    "Australia/Sydney": "AUS Eastern Standard Time", "Australia/Melbourne": "AUS Eastern Standard Time",
    "Australia/Brisbane": "E. Australia Standard Time", "Australia/Perth": "W. Australia Standard Time",
    "Pacific/Auckland": "New Zealand Standard Time", "Africa/Cairo": "Egypt Standard Time",
    "Africa/Johannesburg": "South Africa Standard Time", "Africa/Lagos": "W. Central Africa Standard Time",
    "America/New_York": "Eastern Standard Time", "America/Toronto": "Eastern Standard Time",
    "America/Chicago": "Central Standard Time", "America/Denver": "Mountain Standard Time",
    "America/Phoenix": "US Mountain Standard Time", "America/Los_Angeles": "Pacific Standard Time",
    "America/Anchorage": "Alaskan Standard Time", "Pacific/Honolulu": "Hawaiian Standard Time",
    "America/Halifax": "Atlantic Standard Time", "America/Mexico_City": "Central Standard Time (Mexico)",
    "America/Bogota": "SA Pacific Standard Time", "America/Sao_Paulo": "E. South America Standard Time",
    "America/Argentina/Buenos_Aires": "Argentina Standard Time",
}  # fmt: skip


def zone_literal(zone: str) -> str:
    """Write the Windows name of an IANA zone as a SQL text.

    Raises:
        ConfigError: the zone is not in the table.
    """
    # A Windows name that somebody wrote is taken as it is.
    name = WINDOWS.get(zone, zone if zone in WINDOWS.values() else None)
    if name is None:
        raise ConfigError(
            f"timezone {zone!r} has no Windows name in Rivet's table, and SQL Server knows no other names. "
            f"Convert the column with AT TIME ZONE in a query instead."
        )
    return "N'" + name.replace("'", "''") + "'"
