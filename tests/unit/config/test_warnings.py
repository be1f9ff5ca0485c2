"""What is accepted in a configuration, with a warning."""

from __future__ import annotations

from pathlib import Path

import pytest

from rivet_assets.config.load import load_text

HEAD = "source: {type: postgres, url_env: SHOP_URL}\n"
EXPORT = "exports:\n  - {name: orders, table: orders, format: parquet, destination: {type: local, path: lake}}\n"
CSV = EXPORT.replace("parquet", "csv")
IN_FILE = "stands in the file for every reader to see; use"

CASES = {
    HEAD + EXPORT: [],
    "source: {type: postgres, url: 'postgresql://localhost/shop'}\n" + EXPORT: [
        f"rivet.yaml:1: source: url {IN_FILE} url_env with the name of a variable"
    ],
    "source: {type: postgres, url: '${URL:-postgresql://localhost/shop}'}\n" + EXPORT: [],
    "sources:\n  shop: {type: postgres, host: localhost, user: u, database: d, password: x}\n" + EXPORT: [
        f"rivet.yaml:2: sources.shop: password {IN_FILE} password_env with the name of a variable"
    ],
    HEAD + CSV: [],
    HEAD + CSV.replace("}}", "}, compression: gzip, compression_level: 9}"): [
        f"rivet.yaml:3: exports.orders: {key} is not applied to CSV; parts are written plain, and manifests say none"
        for key in ("compression", "compression_level")
    ],
    HEAD + CSV.replace("}}", "}, compression: none}"): [],
    HEAD + EXPORT.replace("}}", "}, compression: gzip, compression_level: 10}"): [
        "rivet.yaml:3: exports.orders: compression_level 10 is written as 9, gzip's highest"
    ],
    HEAD + EXPORT.replace("}}", "}, transforms: [{type: mask, fields: [email], method: hash, unkeyed: true}]}"): [
        "rivet.yaml:3: exports.orders: the hash of email has no key, so likely values can be tried; use key_env"
    ],
    HEAD + EXPORT.replace("}}", "}, transforms: [{type: mask, fields: [email], method: hash, key: k}]}"): [
        f"rivet.yaml:3: exports.orders: key {IN_FILE} key_env with the name of a variable"
    ],
    HEAD + "parallel_exports: true\nparallel_export_processes: false\n" + EXPORT: [
        "rivet.yaml:2: parallel_exports changes nothing; Dagster decides how many exports run side by side; remove it"
    ],
    HEAD + "notifications: {slack: {}}\n" + EXPORT: [
        "rivet.yaml:2: notifications: slack has no webhook_url_env, so nobody is told; add it",
    ],
    HEAD + "notifications: {slack: {webhook_url_env: HOOK}, webhook: {url_env: HOOK}}\n" + EXPORT: [],
    HEAD + "notifications: {webhook: {on: []}}\n" + EXPORT: [
        "rivet.yaml:2: notifications: webhook has no url_env, so nobody is told; add it",
        "rivet.yaml:2: notifications: webhook.on is empty, so nobody is told; list what is to be told",
    ],
    HEAD + "notifications: {webhook: {url: 'https://hooks.example.com/x'}}\n" + EXPORT: [
        f"rivet.yaml:2: notifications: url {IN_FILE} url_env with the name of a variable"
    ],
}  # fmt: skip


@pytest.mark.parametrize("text", CASES, ids=range(len(CASES)))
def test_warning_says_where_and_what(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each warning is one line with its place; nothing else is warned about."""
    monkeypatch.chdir(tmp_path)

    assert CASES[text] == list(load_text(text, file=Path("rivet.yaml")).warnings)


def test_unused_param_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A param nobody asked for is probably misspelled; one that a query file uses is not."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.sql").write_text("SELECT ${A}")
    text = HEAD + EXPORT.replace("table: orders", "query_file: a.sql")

    assert (
        "rivet.yaml:1: no reference ${b} uses the param b; check its spelling, names are case-sensitive",
    ) == load_text(text, file=Path("rivet.yaml"), params={"A": "1", "b": "2"}).warnings
