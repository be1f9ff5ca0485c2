"""Where tasks run on other machines, what only this one has is refused, and what is mounted everywhere is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rivet_assets.config.load import load_text
from rivet_resources.errors import ConfigError

FILE = """
source: {SOURCE}
spark: {SPARK}
exports:
  - {name: orders, table: orders, format: parquet, destination: {type: local, path: /mnt/lake SHARED}}
"""
FILE_NAME = Path("rivet.yaml")
SERVER = "type: postgres, host: db, user: u, database: d, tls: {mode: disable}"
AUTH = '"spark.authenticate": "true", "spark.network.crypto.enabled": "true"'


def loaded(*, source: str = SERVER, spark: str = "master: spark://h:7077", shared: str = ", shared_path: true") -> None:
    """Load a file with these words in it."""
    load_text(FILE.replace("SOURCE", source).replace("SPARK", spark).replace("SHARED", shared), file=FILE_NAME)


def test_folder_of_this_machine_is_refused_with_every_way_of_leaving_it() -> None:
    """A host that wrote there would leave parts that nobody finds."""
    for spark in ("master: spark://h:7077", "master: yarn", "remote: 'sc://h:15002'"):
        with pytest.raises(ConfigError, match=r"is a folder of this machine, .* set `shared_path: true`"):
            loaded(spark=spark, shared="")


@pytest.mark.parametrize("spark", ["master: 'local[2]'", "engine: inline", "resource: pyspark"])
def test_this_machine_may_write_its_own_folder(spark: str) -> None:
    """Nothing of it is of a cluster; of a project's own Spark nobody knows before it starts."""
    loaded(spark=spark, shared="")


def test_path_that_is_mounted_everywhere_is_taken() -> None:
    """A folder, and an SQLite file."""
    loaded()
    loaded(source="type: sqlite, path: /mnt/shop.db, shared_path: true")
    with pytest.raises(ConfigError, match="is a file of this machine"):
        loaded(source="type: sqlite, path: /mnt/shop.db")


def test_written_secret_travels_over_encrypted_lines_only() -> None:
    """Both settings are needed: encryption without authentication is for whoever asks."""
    written = f"{SERVER}, password: hunter2"
    for conf in ("", '"spark.network.crypto.enabled": "true"', '"spark.authenticate": "true"'):
        with pytest.raises(ConfigError, match=r"source\.password would travel") as refused:
            loaded(source=written, spark=f"master: spark://h:7077, conf: {{{conf}}}")
        assert "hunter2" not in str(refused.value)
    loaded(source=written, spark=f"master: spark://h:7077, conf: {{{AUTH}}}")
    loaded(source=f"{SERVER}, password_env: SHOP_PASSWORD")


def test_settings_of_a_client_encrypt_nothing() -> None:
    """A Connect server speaks to its client and its workers as it was started to."""
    with pytest.raises(ConfigError, match=r"source\.password would travel") as refused:
        loaded(source=f"{SERVER}, password: hunter2", spark=f"remote: 'sc://h:15002', conf: {{{AUTH}}}")

    assert "spark.authenticate" not in str(refused.value)


def test_unused_key_changes_no_digest() -> None:
    """Whoever does not use `shared_path` keeps the fingerprints of before."""
    config = load_text(
        FILE.replace("SOURCE", SERVER).replace("{SPARK}", "inline").replace("SHARED", ""), file=FILE_NAME
    )

    assert "shared_path" not in config.exports[0].destination.model_dump_json()


@pytest.mark.parametrize(
    ("step", "key"),
    [
        ("transforms: [{type: mask, fields: [note], method: hash, key: hunter2-hunter2-hunter2}]", "transforms.0.key"),
        ("mask_tags: {pii: {method: hash, key: hunter2-hunter2-hunter2}}", "mask_tags.pii.key"),
    ],
)
def test_written_key_of_a_mask_is_a_secret_too(step: str, key: str) -> None:
    """It travels with each task, as the source does."""
    text = FILE.replace("SOURCE", SERVER).replace("SPARK", "master: spark://h:7077")
    text = text.replace("SHARED}}", f", shared_path: true}}, {step}}}")

    with pytest.raises(ConfigError, match=f"{re.escape(key)} would travel") as refused:
        load_text(text, file=FILE_NAME)
    assert "hunter2" not in str(refused.value)
