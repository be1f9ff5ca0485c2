"""Empty places in each kind of destination, as settings that a process of its own can open."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.servers.postgres import AZURITE_ACCOUNT, ObjectStore


@pytest.fixture
def local(tmp_path: Path) -> dict[str, Any]:
    """Settings of a folder."""
    return {"type": "local", "path": str(tmp_path / "lake")}


@pytest.fixture
def s3(s3_server: ObjectStore) -> dict[str, Any]:
    """Settings of a prefix in the S3 server."""
    return {"type": "s3", "bucket": s3_server.bucket, "prefix": uuid.uuid4().hex, "endpoint": s3_server.endpoint}


@pytest.fixture
def gcs(gcs_server: ObjectStore) -> dict[str, Any]:
    """Settings of a prefix in the GCS emulator."""
    place = {"bucket": gcs_server.bucket, "prefix": uuid.uuid4().hex, "endpoint": gcs_server.endpoint}
    return {"type": "gcs", **place, "allow_anonymous": True}


@pytest.fixture
def azure(azure_server: ObjectStore) -> dict[str, Any]:
    """Settings of a prefix in Azurite."""
    place = {"container": azure_server.bucket, "prefix": uuid.uuid4().hex, "endpoint": azure_server.endpoint}
    return {"type": "azure", "account": AZURITE_ACCOUNT, **place, "account_key_env": "AZURE_KEY"}
