"""`rivet …`: reads arguments, calls one function, prints what came back.

Belongs here: options, exit codes, where output goes (summaries on stderr, documents on stdout). Not here: any
work. Everything heavy is imported by the command that needs it, so that `rivet --version` answers at once.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rivet_resources.errors import ConfigError, RivetError

if TYPE_CHECKING:
    from rivet_assets.config import RivetConfig
    from rivet_assets.recorder import News, Watch
    from rivet_assets.report import Outcome

SHELLS = ("bash", "zsh", "fish")
CONFIG = click.option(
    "-c", "--config", "path", default="rivet.yaml", show_default=True, type=click.Path(path_type=Path), help="the YAML"
)
PARAM = click.option(
    "-p", "--param", "params", multiple=True, metavar="KEY=VALUE", help="fills ${KEY}; before the environment"
)
JSON = click.option("--json", "as_json", is_flag=True, help="one JSON document on stdout")


def main() -> None:
    """Run the command line; the process ends with the command's exit code (`contract.md`, section 14)."""
    try:
        code = commands.main(prog_name="rivet", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except RivetError as error:
        code = _refuse(error)
    except (KeyboardInterrupt, click.Abort):
        _say("interrupted; whatever was not committed is invisible, and the next run starts where this one did")
        code = 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.stdout.flush()
    sys.exit(code or 0)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("rivet")
    except PackageNotFoundError:
        return "0+uninstalled"


def _show_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"rivet {_version()}")
        context.exit()


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="print it")
def commands() -> None:
    """Export databases to checked, committed files, as Dagster assets run by Spark."""


@commands.command("run")
@CONFIG
@click.option("-e", "--export", "names", multiple=True, metavar="NAME", help="only this one; may be repeated")
@click.option("--partition", "partitions", multiple=True, metavar="KEY", help="a window of time, such as 2026-01-31")
@click.option("--partition-range", "ranges", multiple=True, metavar="A...B", help="windows from A to B, both included")
@PARAM
@JSON
@click.option("--validate", is_flag=True, help="accepted for old scripts: every part is always read back")
@click.option("-v", "--verbose", is_flag=True, help="also the log lines of the run, and tracebacks")
def run_command(
    path: Path, names: Sequence[str], partitions: Sequence[str], ranges: Sequence[str],
    params: Sequence[str], as_json: bool, validate: bool, verbose: bool,
) -> int:  # fmt: skip
    """Run exports now; the summary goes to stderr."""
    from rivet_assets import report
    from rivet_assets.run import run_exports

    for text in ranges:
        if "..." not in text:
            raise click.UsageError(f"--partition-range {text!r} has no '...' between its two windows")
    config = _load(path, params)
    outcomes = run_exports(config, names=names, partitions=[*partitions, *ranges], watch=_progress(verbose))
    _summarise(outcomes, verbose=verbose)
    if as_json:
        click.echo(json.dumps(report.document(outcomes), indent=2))
    return report.worst_exit_code(outcomes)


@commands.command("demo")
@click.option("--ui", is_flag=True, help="serve the same project in the Dagster UI on 127.0.0.1")
@click.option("--port", default=3000, show_default=True, help="of the UI")
def demo_command(ui: bool, port: int) -> int:
    """Fill a small shop in an embedded PostgreSQL and export it into ./rivet_demo."""
    from rivet_assets import demo

    return demo.serve_ui(port=port, say=_say) if ui else demo.run(say=_say)


@commands.command("doctor")
@CONFIG
@click.option("-e", "--export", "names", multiple=True, metavar="NAME", help="only this one; may be repeated")
@PARAM
@JSON
def doctor_command(path: Path, names: Sequence[str], params: Sequence[str], as_json: bool) -> int:
    """Ask sources, destinations, the state store and Java whether exports could run; exit code 1 when one could not."""
    from rivet_assets import doctor, doctor_report

    config = _load(path, params)
    rows = doctor.examine(config, names)
    if as_json:
        click.echo(json.dumps(doctor_report.document(rows, config_path=path), indent=2))
    else:
        click.echo(doctor_report.render(rows))
    return doctor_report.exit_code(rows)


@commands.command("cdc")
@click.option("--source", metavar="URL", help="of a database on this machine; a remote one needs a config with `tls:`")
@click.option("--source-env", metavar="VAR", help="environment variable that holds the URL")
@click.option("--source-file", metavar="PATH", help="file that holds the URL")
@click.option("--table", required=True, metavar="T", help="name or schema.name")
@click.option("--output", metavar="DIR", help="write files there; default: one line of NDJSON per change on stdout")
@click.option("--format", "form", type=click.Choice(["parquet", "csv", "ndjson"]), help="of files; default parquet")
@click.option("--checkpoint", metavar="PATH", help="file that keeps the position; default: the state store here")
@click.option("--rollover", type=int, metavar="N", help="changes per part")
@click.option("--max-events", type=int, metavar="N", help="end with the first commit at or past N changes")
@click.option("--until-current", is_flag=True, help="end where the log ends now; default: follow it until Ctrl-C")
@click.option("--server-id", type=int, metavar="N", help="MySQL: replica id of this reader")
@click.option("--slot", metavar="S", help="PostgreSQL: logical slot; default rivet_slot")
@click.option("--capture-instance", metavar="C", help="SQL Server: capture instance")
@click.option("--snapshot", is_flag=True, help="first a copy of the table")
def cdc_command(**options: Any) -> int:
    """Follow one table's changes from the command line."""
    from rivet_assets.cdc_command import Asked, follow

    return follow(Asked(**options), say=_say)


@commands.group("state")
def state_group() -> None:
    """What Rivet remembers: cursors, files. The manifests are the truth."""


@state_group.command("show")
@CONFIG
@PARAM
@JSON
def state_show(path: Path, params: Sequence[str], as_json: bool) -> int:
    """Show each export's cursor, or position in a log, and its last run."""
    from rivet_assets.forgetting import standing
    from rivet_assets.run import open_state_of

    config = _load(path, params)
    state = open_state_of(config)
    rows = []
    for export in config.exports:
        last = next(iter(state.runs(export.name, last=1)), None)
        rows.append({
            "export": export.name,
            "cursor": standing(config, export, state=state),
            "last run": last.started_at if last else None,
            "status": last.status if last else "never ran",
            "rows": last.total_rows if last else None,
        })  # fmt: skip
    return _print_rows(rows, as_json=as_json)


@state_group.command("files")
@CONFIG
@PARAM
@click.option("-e", "--export", "name", metavar="NAME", help="only of this one")
@click.option("--last", default=50, show_default=True, help="how many, newest first")
@JSON
def state_files(path: Path, params: Sequence[str], name: str | None, last: int, as_json: bool) -> int:
    """List published files, newest first."""
    from rivet_assets.run import open_state_of

    config = _load(path, params)
    if name:
        config.export(name)
    return _print_rows([asdict(file) for file in open_state_of(config).files(name, last)], as_json=as_json)


@state_group.command("reset")
@CONFIG
@PARAM
@click.option("-e", "--export", "name", required=True, metavar="NAME")
def state_reset(path: Path, params: Sequence[str], name: str) -> int:
    """Forget an export's cursor: its next run starts from the beginning and replaces what is there."""
    from rivet_assets.run import open_state_of

    config = _load(path, params)
    from rivet_assets.forgetting import forget

    forget(config, config.export(name), state=open_state_of(config))
    _say(f"{name}: the cursor is reset; the next run starts from the beginning and replaces its windows")
    return 0


@state_group.command("rebuild")
@CONFIG
@PARAM
@click.option("-e", "--export", "name", metavar="NAME", help="only this one")
def state_rebuild(path: Path, params: Sequence[str], name: str | None) -> int:
    """Fill the store again from the manifests at the destinations."""
    from rivet_assets.forgetting import folders_of
    from rivet_assets.run import open_state_of
    from rivet_resources.manifest import current_manifests, resolve_cursor

    config = _load(path, params)
    state = open_state_of(config)
    for export in [config.export(name)] if name else config.exports:
        for folder in folders_of(export):
            root = export.destination.root(folder)
            if not root.keeps_manifests:
                _say(f"{folder}: writes to a stream, which has no manifests")
                continue
            manifests = current_manifests(root)
            # A position in a log is kept in its checkpoint; manifests cannot prove that nothing came after them.
            cursor = None if export.mode == "cdc" else resolve_cursor(manifests)
            state.rebuild(folder, manifests.values(), cursor=cursor)
            files = sum(len(manifest.parts) for manifest in manifests.values())
            _say(f"{folder}: {len(manifests)} manifests, {files} files, cursor {cursor or '–'}")
    return 0


@commands.command("metrics")
@CONFIG
@PARAM
@click.option("-e", "--export", "name", metavar="NAME", help="only of this one")
@click.option("--last", default=20, show_default=True, help="how many, newest first")
@JSON
def metrics_command(path: Path, params: Sequence[str], name: str | None, last: int, as_json: bool) -> int:
    """List past runs, newest first."""
    from rivet_assets import report
    from rivet_assets.run import open_state_of

    config = _load(path, params)
    if name:
        config.export(name)
    runs = open_state_of(config).runs(name, last)
    if as_json:
        return _print_rows([asdict(run) for run in runs], as_json=True)
    rows = [
        {
            "run": run.run_id, "mode": run.mode, "window": run.window, "status": run.status,
            "rows": f"{run.total_rows:,}", "files": run.files_produced, "bytes": report.human_bytes(run.bytes_written),
            "seconds": None if run.duration_ms is None else f"{run.duration_ms / 1000:.1f}",
            "peak": f"{run.peak_mb:.0f} MB", "retries": run.retries, "validated": _yes(run.validated),
            "schema changed": _yes(run.schema_changed),
        }
        for run in runs
    ]  # fmt: skip
    return _print_rows(rows, as_json=False)


@commands.group("schema")
def schema_group() -> None:
    """JSON schemas, for editors."""


@schema_group.command("config")
def schema_config() -> int:
    """Print the JSON schema of rivet.yaml."""
    from rivet_assets.config import config_json_schema

    click.echo(json.dumps(config_json_schema(), indent=2))
    return 0


@commands.command("completions")
@click.argument("shell", type=click.Choice(SHELLS))
def completions_command(shell: str) -> int:
    """Print a completion script, such as for `source <(rivet completions bash)`."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(commands, {}, "rivet", "_RIVET_COMPLETE").source())
    return 0


# --- reading and printing ------------------------------------------------------------------------


def _load(path: Path, params: Sequence[str]) -> RivetConfig:
    """Load the config with its `-p KEY=VALUE`.

    Raises:
        ConfigError: every fault of the file.
    """
    from rivet_assets.config import load_config

    pairs = {}
    for text in params:
        name, found, value = text.partition("=")
        if not found or not name:
            raise ConfigError(f"--param {name!r} has no '='; write -p KEY=VALUE.")
        pairs[name] = value
    config = load_config(path, params=pairs)
    for warning in config.warnings:
        _say(f"warning: {warning}")
    return config


def _say(text: str) -> None:
    click.echo(text, err=True)


def _refuse(error: RivetError) -> int:
    lines = str(error).splitlines() or [type(error).__name__]
    for line in lines:
        _say(f"error: {line}")
    return error.exit_code


def _progress(verbose: bool) -> Watch:
    def tell(news: News) -> None:
        if news.what == "committed":
            _say(f"  {news.export} {news.window} committed" if news.window else f"  {news.export} committed")
        elif news.what == "failed":
            _say(f"  {news.export} failed")
        elif verbose and news.what == "note":
            _say(f"  {news.export}: {news.text}")

    return tell


def _summarise(outcomes: Sequence[Outcome], *, verbose: bool) -> None:
    from rivet_assets import report

    for outcome in outcomes:
        _say("\n" + report.block(outcome))
        if verbose and outcome.traceback:
            _say(outcome.traceback)
    if len(outcomes) > 1:
        _say("\n" + report.table(outcomes))


def _yes(known: bool | None) -> str:
    return "–" if known is None else "yes" if known else "no"


def _print_rows(rows: Sequence[dict[str, Any]], *, as_json: bool) -> int:
    if as_json:
        click.echo(json.dumps(list(rows), indent=2, default=str))
        return 0
    if not rows:
        _say("nothing yet")
        return 0
    texts = [list(rows[0])] + [["–" if cell is None else str(cell) for cell in row.values()] for row in rows]
    widths = [max(len(row[column]) for row in texts) for column in range(len(texts[0]))]
    for row in texts:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0


if __name__ == "__main__":
    main()
