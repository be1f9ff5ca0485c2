"""What is accepted in a configuration but should be looked at.

Belongs here: one function per thing to warn of. Not here: faults.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import SecretStr

from rivet_assets.blocks.choice import Loc
from rivet_assets.config.errors import ConfigFault, at, scalars
from rivet_assets.config.root import RivetConfig
from rivet_assets.config.variables import has_reference
from rivet_assets.config.yaml_document import Document
from rivet_resources.registry import FORMATS
from rivet_resources.shape.transforms.mask import Mask
from rivet_resources.write.formats.parquet import GZIP_HIGHEST


def warnings_of(document: Document, block: Any, config: RivetConfig, *, unused: Sequence[str]) -> list[ConfigFault]:
    """Find everything worth a warning in a valid configuration."""
    found = [
        *_secrets(document, block, config),
        *_codecs(block, config),
        *_guessable(config),
        *_silent_notifications(config),
        *_left_to_dagster(config),
        *_not_checked(config),
    ]
    placed = [ConfigFault(loc, "RIVET_CONFIG_WARNING", message, document.line(loc)) for loc, message in found]
    message = "no reference ${{{name}}} uses the param {name}; check its spelling, names are case-sensitive"
    return placed + [ConfigFault((), "RIVET_CONFIG_WARNING", message.format(name=name), 1) for name in unused]


def _secrets(document: Document, block: Any, config: RivetConfig) -> Iterator[tuple[Loc, str]]:
    """Warn of a secret that stands in the file itself."""
    for loc, value in scalars(block):
        written = document.written(loc)
        if isinstance(_value_of(config, loc), SecretStr) and loc != ("state",) and not has_reference(written or value):
            key = str(loc[-1])
            yield (
                loc,
                f"{key} stands in the file for every reader to see; use {key}_env with the name of a variable",
            )


def _value_of(config: RivetConfig, loc: Loc) -> Any:
    """Return what was made of a raw value; the JSON schema would tell secrets too, but loads every engine for it."""
    held: Any = config
    for step in loc:
        if isinstance(held, Mapping):
            held = held.get(step)
        elif isinstance(held, Sequence):
            held = held[step] if isinstance(step, int) and step < len(held) else None
        else:
            held = getattr(held, str(step), None)
    return held


def _codecs(block: Any, config: RivetConfig) -> Iterator[tuple[Loc, str]]:
    """Warn of keys that change nothing."""
    for index, export in enumerate(config.exports):
        loc = ("exports", index)
        if not FORMATS[export.format].has_codecs:
            for key in ("compression", "compression_level", "parquet"):
                if at(block, (*loc, key)) not in (None, "none"):
                    yield (
                        (*loc, key),
                        f"{key} is not applied to {export.format.upper()}; parts are written "
                        f"{'as text_compression says' if export.text_compression else 'plain, and manifests say none'}",
                    )
        elif getattr(FORMATS[export.format], "is_always_native", False) and at(block, (*loc, "parquet")) is not None:
            yield (*loc, "parquet"), f"parquet is not applied to {export.format.upper()}"
        elif export.compression == "gzip" and (export.compression_level or 0) > GZIP_HIGHEST:
            yield (
                (*loc, "compression_level"),
                f"compression_level {export.compression_level} is written as {GZIP_HIGHEST}, gzip's highest",
            )


def _guessable(config: RivetConfig) -> Iterator[tuple[Loc, str]]:
    """Warn of hashes without a key: whoever has a list of likely values finds the plain one."""
    for index, export in enumerate(config.exports):
        for place, step in enumerate(export.steps):
            if isinstance(step, Mask) and step.unkeyed:
                yield (
                    ("exports", index, "transforms", place),
                    f"the hash of {', '.join(step.fields)} has no key, so likely values can be tried; use key_env",
                )
        for tag, rule in (export.mask_tags or {}).items():
            if rule.unkeyed:
                yield (
                    ("exports", index),
                    f"mask_tags: the hash of {tag} has no key, so likely values can be tried; use key_env",
                )


def _left_to_dagster(config: RivetConfig) -> Iterator[tuple[Loc, str]]:
    """Warn of keys of the original that change nothing here."""
    for key in ("parallel_exports", "parallel_export_processes"):
        if getattr(config, key):
            yield (key,), f"{key} changes nothing; Dagster decides how many exports run side by side; remove it"


def _not_checked(config: RivetConfig) -> Iterator[tuple[Loc, str]]:
    """Name what a data contract demands and Rivet does not look at."""
    for index, export in enumerate(config.exports):
        if export.contract is not None and export.contract.not_checked:
            named = ", ".join(export.contract.not_checked)
            yield ("exports", index, "contract"), f"contract: Rivet does not check {named}"


def _silent_notifications(config: RivetConfig) -> Iterator[tuple[Loc, str]]:
    """Warn of notifications that reach nobody."""
    told = config.notifications
    slack, webhook = (told.slack, told.webhook) if told else (None, None)
    if slack is not None and slack.webhook_url is None and slack.webhook_url_env is None:
        yield ("notifications", "slack"), "slack has no webhook_url_env, so nobody is told; add it"
    if webhook is not None and webhook.url is None and webhook.url_env is None:
        yield ("notifications", "webhook"), "webhook has no url_env, so nobody is told; add it"
    for name, block in (("slack", slack), ("webhook", webhook)):
        if block is not None and not block.on:
            yield ("notifications", name, "on"), f"{name}.on is empty, so nobody is told; list what is to be told"
