"""Which driver the tests of SQL Server read by: Microsoft's wheel, and pyodbc with FreeTDS where the machine has it."""

from __future__ import annotations

import pytest

from tests.emulators.tds import server as tds
from tests.engines.sqlserver import reads


@pytest.fixture(params=reads.DRIVERS)
def driver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each driver in turn; what prepares a database goes by the wheel always."""
    chosen: str = request.param
    if chosen != "mssql-python" and (lacking := tds.missing_odbc()):
        pytest.skip(lacking)
    monkeypatch.setattr(reads, "chosen", chosen)
    return chosen
