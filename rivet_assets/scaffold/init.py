"""`rivet init` and `rivet discover`: ask a source for its tables, and write down what exporting them would take.

Belongs here: the order (look, propose, write), and what is told to people. Not here: which options there are
(`commands/init.py`, `commands/discover.py`), what is proposed (`propose.py`), the file's text (`yaml.py`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rivet_assets.blocks.choice import nearest
from rivet_assets.config.load import load_text
from rivet_assets.scaffold.propose import Proposal, propose
from rivet_assets.scaffold.source import Pointed
from rivet_assets.scaffold.yaml import Scaffold, render
from rivet_resources.contracts.evidence import TableFacts
from rivet_resources.contracts.settings import pace
from rivet_resources.contracts.source import Source
from rivet_resources.errors import ConfigError, UnknownTable
from rivet_resources.registry import DESTINATIONS

SHOWN = 12  # names of tables in a message
HEAD = (
    "Written by `rivet init` from the source's catalog and statistics; no row was read. Numbers of rows are estimates.",
    "Each export says why it is as it is. Change what you know better; `rivet check` judges the result.",
)


@dataclass(frozen=True)
class Wanted:
    """What the file shall hold, and where it goes."""

    output: Path
    form: Literal["parquet", "csv", "defs"] = "parquet"
    destination: str = "exports"
    patterns: tuple[str, ...] = ()
    force: bool = False


@dataclass(frozen=True)
class WrittenFile:
    """What was written, for people."""

    path: Path
    lines: tuple[str, ...]


def write(pointed: Pointed, wanted: Wanted) -> WrittenFile:
    """Write the file, which loads without a warning.

    Raises:
        ConfigError: the file is there already, or nothing can be exported.
        SourceError: the source does not answer, or refuses.
    """
    if wanted.output.exists() and not wanted.force:
        raise ConfigError(f"{wanted.output} is there already; pass --force to replace it, or -o to write another file.")
    destination = destination_block(wanted.destination)
    proposals = look(pointed.source, wanted.patterns)
    if all(proposal.refused for proposal in proposals):
        reasons = [f"{proposal.facts.schema}.{proposal.facts.name}: {proposal.refused}" for proposal in proposals]
        raise ConfigError("None of the tables can be exported: " + "; ".join(reasons[:SHOWN]) + ".")
    scaffold = Scaffold(
        source=pointed.block,
        notes=pointed.notes,
        destination=destination,
        form="csv" if wanted.form == "csv" else "parquet",
        default_schema=pointed.default_schema,
        quote=pointed.source.quote,
        head=HEAD,
    )
    load_text(render(scaffold, proposals), file=wanted.output)  # refuses here what it would refuse later
    _save(wanted, render(scaffold, proposals, as_component=wanted.form == "defs"))
    return WrittenFile(wanted.output, (*_summary(wanted, proposals), *_next(pointed, wanted)))


def look(source: Source, patterns: Sequence[str], *, application: str = "rivet init") -> list[Proposal]:
    """Ask the source for the tables that the patterns mean, and propose an export for each.

    Raises:
        UnknownTable: it shows no table to this user, or none that a pattern means.
        SourceError: it does not answer, or refuses.
    """
    paced = pace(source.tuning, None).model_copy(update={"max_retries": 0})  # someone waits for the answer
    with source.session(application=application, pace=paced, snapshot=False) as session:
        found: dict[tuple[str, str], TableFacts] = {}
        for pattern in patterns or ("",):
            tables = session.tables(pattern)
            if not tables:
                raise _nothing(pattern, session.tables() if pattern else ())
            found |= {(facts.schema, facts.name): facts for facts in tables}
    return [propose(found[place], engine=source.facts) for place in sorted(found)]


def _nothing(pattern: str, others: Sequence[TableFacts]) -> UnknownTable:
    if not others:
        return UnknownTable(
            "The source shows this user no table that it may read: the database is empty, or nobody granted SELECT. "
            "Check the database's name, or let its owner run: GRANT SELECT ON <table> TO <user>."
        )
    names = [facts.name for facts in others]
    close = nearest(pattern.rpartition(".")[2], names)
    more = f", and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return UnknownTable(
        f"No table that this user may read is called {pattern!r}; there are {', '.join(names[:SHOWN])}{more}."
        f"{f' Did you mean {close}?' if close else ''} Quote globs for the shell: --table 'public.*'."
    )


def destination_block(text: str) -> dict[str, Any]:
    """Read a destination: a path, s3://bucket/prefix, gs://bucket/prefix or abfss://container@account/prefix.

    Raises:
        ConfigError: another scheme, no bucket, or no account.
    """
    scheme, found, rest = text.partition("://")
    if not found:
        return {"type": "local", "path": text.removeprefix("local:").strip() or "exports"}
    words = {known: word for word, place in DESTINATIONS.items() for known in place.schemes}
    keys = DESTINATIONS[words[scheme]].read_address(rest) if scheme in words else {}
    if not keys:
        raise ConfigError(
            f"--destination {text!r} is neither a path nor s3://bucket/prefix nor gs://bucket/prefix nor "
            f"abfss://container@account.dfs.core.windows.net/prefix."
        )
    return {"type": words[scheme], **{key: value for key, value in keys.items() if value}}


def _save(wanted: Wanted, text: str) -> None:
    """Write the text; never over a file that appeared meanwhile.

    Raises:
        ConfigError: the place cannot be written.
    """
    try:
        wanted.output.parent.mkdir(parents=True, exist_ok=True)
        with wanted.output.open("w" if wanted.force else "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"{wanted.output} cannot be written: {error.strerror}. Name another file with -o.") from error


def _summary(wanted: Wanted, proposals: Sequence[Proposal]) -> list[str]:
    modes = Counter(proposal.mode for proposal in proposals if not proposal.refused)
    left = sum(1 for proposal in proposals if proposal.refused)
    counted = ", ".join(f"{count} {mode}" for mode, count in modes.most_common())
    lines = [f"wrote {wanted.output}: {modes.total()} export{'' if modes.total() == 1 else 's'} ({counted})"]
    return lines + ([f"{left} left out; comments in the file say why"] if left else [])


def _next(pointed: Pointed, wanted: Wanted) -> list[str]:
    """Name the commands that come next."""
    if wanted.form == "defs":
        commands = ["dg check yaml", "dg dev"]
    else:
        named = "" if str(wanted.output) == "rivet.yaml" else f" -c {_argument(wanted.output)}"
        commands = [f"rivet check{named}", f"rivet run{named}"]
    return ["next:", *(f"  {command}" for command in (*pointed.first, *commands))]


def _argument(path: Path) -> str:
    text = str(path)
    return text if re.fullmatch(r"[\w./-]+", text) else "'" + text.replace("'", "'\\''") + "'"
