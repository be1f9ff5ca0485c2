"""`rivet cdc`: follow one table without a config file.

Belongs here: the config that the options amount to, and the two ways of running it. Not here: the drain.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from rivet_assets.config.load import load_text
from rivet_assets.config.root import RivetConfig
from rivet_assets.launch.run_exports import run_exports
from rivet_assets.modes.cdc import Cdc
from rivet_assets.run import interruption
from rivet_assets.run.admit.scope import state_of
from rivet_assets.run.drain import DrainSite, run_drain
from rivet_resources.contracts.change_log import LogSource
from rivet_resources.engines.shared.names import split_name
from rivet_resources.errors import ConfigError
from rivet_resources.read.stage import Exporter
from rivet_resources.registry import ENGINES, engines_by_scheme
from rivet_resources.secrets import resolve_secret
from rivet_resources.spark.runtime import SparkRuntime


@dataclass(frozen=True)
class Asked:
    """The options of the command; None where nothing was said."""

    table: str
    source: str | None = None
    source_env: str | None = None
    source_file: str | None = None
    output: str | None = None
    form: str | None = None
    checkpoint: str | None = None
    rollover: int | None = None
    max_events: int | None = None
    until_current: bool = False
    server_id: int | None = None
    slot: str | None = None
    capture_instance: str | None = None
    snapshot: bool = False


def follow(asked: Asked, *, say: Callable[[str], None]) -> int:
    """Run the drain that the options describe; the exit code.

    Raises:
        ConfigError: the options do not fit together.
        RivetError: whatever the drain raises.
    """
    config = config_of(asked)
    for warning in config.warnings:
        say(f"warning: {warning}")
    if asked.output is None:
        return _print(config, say=say)
    from rivet_assets.cli.terminal import show  # start
    from rivet_assets.launch import outcome as report  # start

    outcomes = run_exports(config)
    show(report.block(outcomes[0]), err=True)
    return report.worst_exit_code(outcomes)


def config_of(asked: Asked) -> RivetConfig:
    """Write the options as a configuration, validated like any other.

    Raises:
        ConfigError: no source or several, a format without files, and all that a YAML would be refused for.
    """
    import yaml  # start

    given = [key for key in ("source", "source_env", "source_file") if getattr(asked, key)]
    if len(given) != 1:
        raise ConfigError("rivet cdc needs exactly one of --source, --source-env and --source-file.")
    if asked.form and not asked.output:
        raise ConfigError("--format is of files; add --output DIR, or leave it out: lines on stdout are NDJSON.")
    block: dict[str, Any] = {
        "until_current": asked.until_current,
        "checkpoint": asked.checkpoint,
        "rollover": asked.rollover,
        "max_events": asked.max_events,
        "server_id": asked.server_id,
        "slot": asked.slot,
        "capture_instance": asked.capture_instance,
        "initial": "snapshot" if asked.snapshot else None,
    }
    export = {
        "name": "".join(letter if letter.isalnum() else "_" for letter in split_name(asked.table)[1]) + "_cdc",
        "mode": "cdc",
        "table": asked.table,
        "format": asked.form or ("parquet" if asked.output else "ndjson"),
        "destination": {"type": "local", "path": asked.output} if asked.output else {"type": "stdout"},
        "cdc": {key: value for key, value in block.items() if value is not None},
    }
    document = {"source": _source(asked), "exports": [export]}
    return load_text(yaml.safe_dump(document), file=Path("rivet cdc"))


def _source(asked: Asked) -> dict[str, Any]:
    """Describe the source; the URL's scheme names the engine, and the URL itself stays where it was given.

    Raises:
        ConfigError: no engine with a log has this scheme.
    """
    file = Path(asked.source_file) if asked.source_file else None
    url = asked.source or resolve_secret(None, env=asked.source_env, file=file, key="source") or ""
    scheme = urlsplit(url).scheme.partition("+")[0]
    known = {each: word for each, word in engines_by_scheme().items() if ENGINES[word].facts.has_log}
    if scheme not in known:
        raise ConfigError(f"The source's URL begins with none of {', '.join(known)}: write scheme://…")
    place = (
        {"url": url}
        if asked.source
        else {"url_env": asked.source_env}
        if asked.source_env
        else {"url_file": asked.source_file}
    )
    return {"type": known[scheme], **place}


def _print(config: RivetConfig, *, say: Callable[[str], None]) -> int:
    """Drain to stdout, without Dagster; the position moves after the lines are flushed."""
    export = cast(Cdc, config.exports[0])
    name, source = config.source_of(export)
    state = state_of(config)
    with interruption.gently() as end:
        site = DrainSite(
            export=export,
            source_name=name,
            source=cast(LogSource, source),
            exporter=lambda: Exporter(spark=SparkRuntime(config.spark), state=state),
            state=state,
            folder=config.folder,
            tell=say,
            is_asked_to_end=end.is_asked,
            end_within=end.within,
        )
        drained = run_drain(site)
    sys.stdout.flush()
    say(f"{export.name}: {drained.changes:,} changes; at {drained.position.text}")
    return 0
