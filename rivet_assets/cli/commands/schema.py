"""`rivet schema …`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from rivet_assets.cli.groups import CommandGroup
from rivet_assets.cli.options import CONFIG, JSON, PARAM, known_names, load, print_rows, say

if TYPE_CHECKING:
    from rivet_resources.contracts.schema_registry import Compatibility, SchemaFormat

RULES = (
    "none", "backward", "backward_transitive", "forward", "forward_transitive", "full", "full_transitive",
)  # fmt: skip
NAME = click.option(
    "-e", "--export", "name", metavar="NAME", required=True, shell_complete=known_names, help="of this export"
)
NAME_OR_SUBJECT = click.option(
    "-e", "--export", "name", metavar="NAME", shell_complete=known_names, help="of this export, as its table is now"
)
FORMAT = click.option(
    "--format", "form", type=click.Choice(["avro", "json", "protobuf"]), metavar="WORD",
    help="avro, json or protobuf; default: the export's, else avro",
)  # fmt: skip


def rule_option(text: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Return the option that names a rule."""
    return click.option("--compatibility", "rule", type=click.Choice(RULES), metavar="RULE", help=text)


@click.group("schema", cls=CommandGroup)
def schema_group() -> None:
    """Schemas: of rivet.yaml, of exports, of a schema registry."""


@schema_group.command("config")
def schema_config() -> int:
    """Print the JSON schema of rivet.yaml."""
    from rivet_assets.config.load import config_json_schema  # start

    click.echo(json.dumps(config_json_schema(), indent=2))
    return 0


@schema_group.command("list", short_help="List the subjects of the schema registry.")
@CONFIG
@PARAM
@JSON
def schema_list(path: Path, params: Sequence[str], as_json: bool) -> int:
    """List the subjects of the schema registry: versions, the newest one's id and language, the rule."""
    from rivet_assets.preflight.schemas import list_subjects  # start

    return print_rows([asdict(each) for each in list_subjects(load(path, params))], as_json=as_json)


@schema_group.command("show", short_help="Print the schema of an export, or of a subject's version.")
@CONFIG
@PARAM
@NAME_OR_SUBJECT
@click.option("--subject", metavar="NAME", help="of this subject in the schema registry")
@click.option("--version", "number", type=int, metavar="N", help="of the subject; default: the newest")
@click.option("--sample", type=click.Path(path_type=Path), metavar="FILE", help="of rows like those of this file")
@FORMAT
@click.option("--fingerprints", is_flag=True, help="its MD5 and SHA-256 instead, by its canonical form")
def schema_show(
    path: Path, params: Sequence[str], name: str | None, subject: str | None, number: int | None, sample: Path | None,
    form: str | None, fingerprints: bool,
) -> int:  # fmt: skip
    """Print the schema of the columns that an export has now, one that is registered, or one inferred from a file."""
    from rivet_assets.preflight.schemas import read_version, text_of_export, text_of_sample  # start
    from rivet_resources.schema_registry.languages.language import fingerprints as fingerprints_of  # start

    if sum(each is not None for each in (name, subject, sample)) != 1:
        raise click.UsageError("name one of: an export with -e, a --subject, a --sample")
    asked = cast("SchemaFormat | None", form)
    word: SchemaFormat
    if sample is not None:
        word = asked or "avro"
        text = text_of_sample(sample, form=word)
    elif subject is not None:
        found = read_version(load(path, params), subject, number)
        word, text = found.format, found.text
    else:
        word, text = text_of_export(load(path, params), cast(str, name), form=asked)
    if fingerprints:
        click.echo(json.dumps(fingerprints_of(word, text), indent=2))
    else:
        click.echo(text if word == "protobuf" else json.dumps(json.loads(text), indent=2, ensure_ascii=False))
    return 0


@schema_group.command("check", short_help="Tell whether an export still fits schemas that readers have.")
@CONFIG
@PARAM
@NAME
@click.option(
    "--against",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="FILE",
    help="a file of a schema; several: the newest last; default: the versions in the schema registry",
)
@rule_option("none, backward, forward or full; the last three also with _transitive; default: the subject's")
@FORMAT
@JSON
def schema_check(
    path: Path, params: Sequence[str], name: str, against: Sequence[Path], rule: str | None, form: str | None,
    as_json: bool,
) -> int:  # fmt: skip
    """Hold the columns that an export has now against schemas. Exit code 3 when readers would break."""
    from rivet_assets.preflight.schemas import check_files, check_registry  # start

    config = load(path, params)
    if against:
        chosen = cast("Compatibility", rule or "backward")
        found = check_files(config, name, against=against, rule=chosen, form=cast("SchemaFormat | None", form))
    else:
        found = check_registry(config, name, rule=cast("Compatibility | None", rule))
    if as_json:
        click.echo(json.dumps(asdict(found), indent=2))
    else:
        known = f", registered as version {found.version} of {found.subject}" if found.version is not None else ""
        broken = f"{len(found.breaks)} breaks of " if found.breaks else ""
        click.echo(f"{name}: {broken}{found.compatibility}{known}")
        for each in found.breaks:
            click.echo(f"  {each}")
    return 3 if found.breaks else 0


@schema_group.command("register", short_help="Register the schema that an export has now.")
@CONFIG
@PARAM
@NAME
@rule_option("judge by this rule, this once; none lets every change pass")
@JSON
def schema_register(path: Path, params: Sequence[str], name: str, rule: str | None, as_json: bool) -> int:
    """Register the schema of the columns that an export has now, and remember it; reads no row."""
    from rivet_assets.preflight.schemas import register  # start

    found = register(load(path, params), name, rule=cast("Compatibility | None", rule))
    if as_json:
        click.echo(json.dumps(found.facts, indent=2))
    else:
        say(f"{name}: version {found.version} of subject {found.subject}, id {found.id}")
    return 0


@schema_group.command("serve", short_help="Serve the registry in the state store over HTTP.")
@CONFIG
@PARAM
@click.option("--host", default="127.0.0.1", show_default=True, help="address to listen at")
@click.option("--port", default=8081, show_default=True, type=click.IntRange(0, 65535), help="port to listen at")
@click.option("--username", metavar="NAME", help="whom to let in, by basic authentication")
@click.option("--password-env", metavar="VARIABLE", help="environment variable that holds the password")
@click.option("--certificate", type=click.Path(path_type=Path), metavar="FILE", help="PEM file: serve over TLS")
@click.option("--key", type=click.Path(path_type=Path), metavar="FILE", help="PEM file of the certificate's key")
def schema_serve(
    path: Path, params: Sequence[str], host: str, port: int, username: str | None, password_env: str | None,
    certificate: Path | None, key: Path | None,
) -> int:  # fmt: skip
    """Serve the registry in the state store as Confluent's HTTP API, for other people's serializers; until Ctrl-C."""
    from rivet_assets.preflight.schema_server import serve  # start
    from rivet_resources.schema_registry.server import ServerSettings  # start

    if (username is None) != (password_env is None):
        raise click.UsageError("write --username with --password-env")
    settings = ServerSettings(host, port, username, certificate=certificate, key=key)
    serve(load(path, params), settings, password_env=password_env, tell=say)
    return 0
