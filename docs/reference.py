"""Write the pages of `docs/reference/` that follow from the code: every YAML key, every command, every error code.

    python -m docs.reference

Belongs here: turning models, commands and error classes into Markdown. Not here: the texts themselves; they are the
descriptions of the fields, the help of the options and the docstrings of the errors. A test fails while a page is not
what this would write (`tests/unit/docs/test_documents.py`).
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from rivet_assets.cli.main import EXAMPLE, GROUPS, commands
from rivet_assets.config.error_codes import CODES
from rivet_assets.config.root import RivetConfig
from rivet_resources.contracts.settings import PROFILES
from rivet_resources.errors import RivetError
from rivet_resources.prove.flaws import EXITS, KINDS, PREFIX

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "reference"
WRITTEN = "<!-- Written by `python -m docs.reference`; do not edit. -->"
WIDTH = 80  # of a terminal, for the usage lines

Schema = Mapping[str, Any]


# --- the YAML keys -------------------------------------------------------------------------------

# The unions of blocks, in the order of a file: the key, its heading, which of its keys tells the variants apart.
YAML_HEAD = f"""{WRITTEN}

# YAML keys

Every key of `rivet.yaml`, and of the `attributes:` of a Dagster component. Unknown keys are errors, with the \
nearest known one. `${{NAME}}` and `${{NAME:-default}}` are filled from `-p NAME=VALUE`, then from the environment. \
`rivet schema config` prints the same as a JSON schema, for editors.

"""
TRANSFORMS = """Steps run in order, on Arrow pages; rules, hashes and files see what they leave. SQL is DuckDB's, \
one expression over the columns of the row. A value that cannot be transformed stops the window, with the step and a \
count, never the value. A masked column cannot be a cursor or chunk column, and no column made of it before the mask \
may stay unless the mask `reveals` it.
"""
TLS_OF_MYSQL = """MySQL and MariaDB: the password itself (clear text, `dialog`) goes to a checked server or a Unix \
socket only; encrypted for the server's key (`sha256_password`, the first login of `caching_sha2_password` after a \
server's start) also to a loopback address.
"""
# What a reader of a block should know and no single key can say.
NOTES: Mapping[str, str] = {
    "source": "Of a server: one of `url`, `url_env`, `url_file`, or the single fields. A host that is not this machine "
    "needs a `tls:` block.\n",
    "exports": "One of `table`, `query` and `query_file`; with `mode: cdc` one of `table` and `tables`.\n",
    "destination": "`type: stdout` is one stream: no manifest, no retry.\n",
    "transforms": TRANSFORMS,
    "tls": TLS_OF_MYSQL,
    "spark": "A block, or the word `inline`. A file with an export that has `apply:` gets `jit: full` and "
    "`driver_memory: 2g` unless it says otherwise, since the rows of these tables do enter the JVM.\n",
    "notifications": "One message per run of an export and event, sent by `rivet run`, by `rivet apply` and from "
    "Dagster's runs. https or this machine only; redirects are not followed; 10 s, one more try; what cannot be sent "
    "is a warning. `degraded`: it succeeded with retries, or slowed down by the governor; `recovered`: the run before "
    "failed. No message holds a row value or a secret.\n",
    "webhook": "The body has event, export, status, run_id, rows, duration_ms, code, error, schema_changed, at. The "
    "header `X-Rivet-Signature: sha256=…` is the body's HMAC-SHA256.\n",
    "delete_detection": "How deletions are noticed.\n",
    "freshness": "A block, or a duration for `fail_after`.\n",
    "columns": "By column name: one type word, or a block.\n",
    "tuning": "On a source, and on an export, which overrides it field by field. `environment: local` means profile "
    "fast. What a profile sets, where the key is left out:\n",
}


class Yaml:
    """The reference of the YAML keys, block by block, each block once."""

    def __init__(self, schema: Schema) -> None:
        self.defs: Mapping[str, Schema] = schema["$defs"]
        self.root = schema
        self.headings: dict[str, str] = {}  # its blocks → heading of the section
        self.at = ""  # heading of the section that is being written
        self.waiting: list[tuple[str, list[Schema]]] = []

    def page(self) -> str:
        """Return the page."""
        sections = ["## The file\n\n" + self._table(self.root)]
        while self.waiting:
            key, variants = self.waiting.pop(0)
            self.at = key
            sections.append(self._section(key, variants))
        return YAML_HEAD + "\n".join(sections)

    def _section(self, key: str, variants: list[Schema]) -> str:
        note = NOTES.get(key, "")
        if len(variants) == 1:
            (block,) = variants
            told = "" if note or key in NOTES else _sentence(block)
            extra = _profiles() + "\n" if key == "tuning" else ""
            return f"## `{key}:`\n\n{told}{note}{chr(10) if note else ''}{extra}{self._table(block)}"
        return f"## `{key}:`\n\n{note}{chr(10) if note else ''}" + "\n".join(self._variants(key, variants))

    def _variants(self, key: str, variants: list[Schema]) -> Iterator[str]:
        """Show what all variants share once, then what each adds."""
        tag = _tag(variants)
        shared = [
            name for name in variants[0]["properties"]
            if name != tag and all(each["properties"].get(name) == variants[0]["properties"][name] for each in variants)
        ]  # fmt: skip
        if shared and len(variants) < 10:
            yield f"### Every {tag}\n\n" + self._table(variants[0], only=shared)
        shown: list[Schema] = []
        for block in variants:
            first, *others = _words(block["properties"][tag], self.defs)
            words = f"`{tag}: {first}`" + (f" ({', '.join(f'`{word}`' for word in others)})" if others else "")
            left = [name for name in block["properties"] if name != tag and name not in shared]
            if len(variants) >= 10:
                left = [name for name in block["properties"] if name != tag]
            mine = set(_own(block, tag))
            base = next(
                (each for each in shown if (own := set(_own(each, tag))) <= mine and len(own) > len(shared) + 3), None
            )
            told = _sentence(block)
            if base is not None:
                like = _words(base["properties"][tag], self.defs)[0]
                left = [name for name in left if base["properties"].get(name) != block["properties"][name]]
                told += f"The keys of `{tag}: {like}`{', and:' if left else '.'}\n\n"
            shown.append(block)
            table = (
                self._table(block, only=left) if left else "" if base else "No keys of its own.\n" if not shared else ""
            )
            yield f"### {words}\n\n{told}{table}".rstrip() + "\n"

    def _table(self, block: Schema, *, only: Sequence[str] | None = None) -> str:
        rows = ["| Key | Value | Default | Meaning |", "|---|---|---|---|"]
        needed = block.get("required", ())
        for name, field in block.get("properties", {}).items():
            if only is not None and name not in only:
                continue
            default = "**required**" if name in needed else _default(field)
            rows.append(
                f"| `{name}` | {self._value(name, field)} | {default} | {_cell(field.get('description', ''))} |"
            )
        return "\n".join(rows) + "\n"

    def _value(self, key: str, field: Schema) -> str:
        """Name what may stand there; blocks get a section of their own."""
        blocks = list(_blocks(field, self.defs))
        if blocks:
            link = f"[block](#{self._want(key, blocks).replace('.', '')})"
            plain = " or ".join(dict.fromkeys(_plain(field, self.defs)))
            listed = "list of " if field.get("type") == "array" else "by name: " if _is_map(field) else ""
            return f"{listed}{link}{f' or {plain}' if plain else ''}"
        return " or ".join(dict.fromkeys(_plain(field, self.defs))) or "text"

    def _want(self, key: str, blocks: list[Schema]) -> str:
        """Ask for a section of these blocks, once; its heading: the key, after its own section's where two share it."""
        name = "|".join(dict.fromkeys(json.dumps(each, sort_keys=True) for each in blocks))
        if name not in self.headings:
            self.headings[name] = f"{self.at}.{key}" if key in self.headings.values() else key
            unlike = list({json.dumps(each, sort_keys=True): each for each in blocks}.values())
            self.waiting.append((self.headings[name], unlike))
        return self.headings[name]


def _own(block: Schema, tag: str) -> list[str]:
    return [name for name in block["properties"] if name != tag]


def _tag(variants: Sequence[Schema]) -> str:
    """Find the key that tells variants apart: `type` or `mode`."""
    return next(name for name in ("type", "mode") if all(name in each["properties"] for each in variants))


def _resolved(field: Schema, defs: Mapping[str, Schema]) -> Schema:
    return defs[field["$ref"].rpartition("/")[2]] if "$ref" in field else field


def _branches(field: Schema) -> list[Schema]:
    chosen = [field[word] for word in ("then", "else") if field.get(word)]
    named = [{"type": "string"}] if "string" in field.get("if", {}).get("type", ()) else []
    return [*named, *field.get("anyOf", ()), *field.get("oneOf", ()), *field.get("allOf", ()), *chosen]


def _is_map(field: Schema) -> bool:
    return isinstance(field.get("additionalProperties"), Mapping)


def _blocks(field: Schema, defs: Mapping[str, Schema]) -> Iterator[Schema]:
    """Yield the blocks that a field may hold, alone, in a list or by name."""
    found = _resolved(field, defs)
    if "properties" in found and not _branches(found):
        yield found
        return
    for each in _branches(found):
        yield from _blocks(each, defs)
    if isinstance(found.get("items"), Mapping):
        yield from _blocks(found["items"], defs)
    if _is_map(found):
        yield from _blocks(found["additionalProperties"], defs)


def _words(field: Schema, defs: Mapping[str, Schema]) -> list[str]:
    found = _resolved(field, defs)
    words = found.get("enum") or ([found["const"]] if "const" in found else [])
    return [str(word) for word in words] or [word for each in _branches(found) for word in _words(each, defs)]


PLAIN = {"string": "text", "integer": "whole number", "number": "number", "boolean": "`true`, `false`"}


def _plain(field: Schema, defs: Mapping[str, Schema]) -> Iterator[str]:
    """Yield the values that are no blocks, in words."""
    found = _resolved(field, defs)
    if "properties" in found or found.get("type") == "null" or not found:
        return
    if found.get("pattern") == r"\$\{":  # a reference may stand anywhere, as the head of the page says
        return
    words = found.get("enum") or ([found["const"]] if "const" in found else [])
    if words:
        yield ", ".join(f"`{word}`" for word in words)
    elif _branches(found):
        for each in _branches(found):
            yield from _plain(each, defs)
    elif found.get("type") == "array":
        inside = " or ".join(dict.fromkeys(_plain(found.get("items", {}), defs)))
        if inside:
            yield f"list of {inside}"
    elif found.get("type") == "object":
        inside = (
            " or ".join(dict.fromkeys(_plain(found["additionalProperties"], defs))) if _is_map(found) else "any value"
        )
        if inside:
            yield f"by name: {inside}"
    elif "type" in found:
        yield PLAIN.get(found["type"], str(found["type"])) + _limits(found)


def _limits(found: Schema) -> str:
    low, high = found.get("minimum"), found.get("maximum")
    if low is not None and high is not None:
        return f", {low} to {high}"
    if low is not None:
        return f", at least {low}"
    return f", at most {high}" if high is not None else ""


def _default(field: Schema) -> str:
    value = field.get("default")
    if value is None or value in ([], {}, ()) or isinstance(value, Mapping):
        return "–"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if value == "":
        return "empty"
    if isinstance(value, list):
        return ", ".join(f"`{each}`" for each in value)
    return f"`{value}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _sentence(block: Schema) -> str:
    """Return the first paragraph of a block's docstring."""
    told = str(block.get("description", "")).split("\n\n")[0]
    return f"{' '.join(told.split())}\n\n" if told else ""


def _profiles() -> str:
    names = list(PROFILES)
    rows = [f"| Key | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for key in next(iter(PROFILES.values())):
        values = [str(PROFILES[name][key]).lower() for name in names]
        rows.append(f"| `{key}` | {' | '.join(values)} |")
    return "\n".join(rows) + "\n"


def yaml_page() -> str:
    """Return the reference of the YAML keys."""
    return Yaml(RivetConfig.model_json_schema()).page()


# --- the command line ----------------------------------------------------------------------------

CLI_HEAD = f"""{WRITTEN}

# Commands

Summaries go to stderr, documents (`--json`) to stdout. `rivet COMMAND --help` prints what stands here. [Exit \
codes](exit-codes.md), [environment variables](environment.md).

"""


def cli_page() -> str:
    """Return the reference of the commands."""
    context = click.Context(commands, info_name="rivet", max_content_width=WIDTH, terminal_width=WIDTH)
    own = "## rivet\n\n" + _options(commands)
    found = [commands.get_command(context, name) for name in commands.list_commands(context)]
    shown = [command for command in found if command is not None and not command.hidden]
    sections = [text for command in shown for text in _command(command, context)]
    return CLI_HEAD + _contents(shown) + "\n".join([own, *sections])


def _contents(shown: Sequence[click.Command]) -> str:
    """Return the list of commands, in the groups of `rivet --help`, each with the help's one line."""
    lines = {str(command.name): command.get_short_help_str(limit=200) for command in shown}
    groups = [
        f"**{heading}**\n\n"
        + "".join(f"* [`rivet {name}`](#rivet-{name}): {lines[name]}\n" for name in group if name in lines)
        for heading, group in GROUPS.items()
    ]
    example = "\n".join(line.strip() for line in EXAMPLE.splitlines() if line.startswith("  "))
    return "\n".join(groups) + f"\n```bash\n{example}\n```\n\n"


def _command(command: click.Command, above: click.Context) -> Iterator[str]:
    name = f"{above.command_path} {command.name}"
    context = click.Context(command, info_name=command.name, parent=above, terminal_width=WIDTH)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    help_text = inspect.cleandoc(command.help or "").replace("\f", "")
    level = "##" if above.parent is None else "###"
    yield f"{level} {name}\n\n{_told(help_text)}\n\n```\n{usage}\n```\n\n{_options(command)}"
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            below = command.get_command(context, each)
            if below is not None and not below.hidden:
                yield from _command(below, context)


def _told(text: str) -> str:
    """Keep paragraphs; lines that are laid out stay as they are."""
    blocks = []
    for paragraph in text.split("\n\n"):
        laid_out = "\b" in paragraph or any(line.startswith("  ") for line in paragraph.splitlines())
        lines = inspect.cleandoc(paragraph.replace("\b", ""))
        blocks.append(f"```\n{lines}\n```" if laid_out else " ".join(paragraph.split()))
    return "\n\n".join(blocks)


def _options(command: click.Command) -> str:
    rows = []
    for option in command.params:
        if not isinstance(option, click.Option) or option.hidden:
            continue
        names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
        kind = "" if option.is_flag else f" {_kind(option)}"
        default = f" (default `{option.default}`)" if option.show_default and option.default not in (None, ()) else ""
        rows.append(
            f"| {names}{kind} | {_cell(option.help or '')}{default}{' **required**' if option.required else ''} |"
        )
    if not rows:
        return ""
    return "\n".join(["| Option | Meaning |", "|---|---|", *rows]) + "\n"


def _kind(option: click.Option) -> str:
    if option.metavar:
        return option.metavar.replace("|", "\\|")
    if isinstance(option.type, click.Choice):
        return "\\|".join(str(choice) for choice in option.type.choices)
    return option.type.name.upper()


# --- error codes ---------------------------------------------------------------------------------

ERRORS_HEAD = f"""{WRITTEN}

# Error codes

Each failure has a stable code. It stands in square brackets behind the message of a run, in `--json-errors`, in the \
summary files, and as `rivet/code` in Dagster. What the numbers mean: [exit codes](exit-codes.md). What to do: [what \
can go wrong](../what-can-go-wrong.md).

"""


ENGINES_WITH_CODES = {
    "postgres": "PostgreSQL",
    "mysql": "MySQL, MariaDB",
    "sqlserver": "SQL Server",
    "sqlite": "SQLite",
}
PASSING_HEAD = """## Faults of databases that may pass

The databases' own codes after which the same statement is asked again, and the seconds that are added to the pause \
(`retry_backoff_ms`, doubled each time, at most 60 s). Two letters or digits stand for a class. Every other code is \
permanent.

| Engine | Seconds added: codes |
|---|---|
"""


def errors_page() -> str:
    """Return the list of error codes."""
    for path in _modules_with_codes():
        import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    found = sorted(
        {each.code: each for each in _subclasses(RivetError) if each.__module__.startswith("rivet_")}.items()
    )
    rows = [
        f"| `{code}` | {each.exit_code} | {'yes' if each.retry else 'no'} | {_cell(_first(each.__doc__))} |"
        for code, each in found
        if code != "RIVET_CONFIG_INVALID"
    ]
    runs = "\n".join(["| Code | Exit code | May pass by itself | Meaning |", "|---|---|---|---|", *rows])
    config = "\n".join(f"| `{code}` | {_cell(text)} |" for code, text in CODES.items())
    verify = "\n".join(f"| `{PREFIX}{short}` | {kind} | {EXITS[kind]} |" for short, kind in KINDS.items())
    return (
        f"{ERRORS_HEAD}## While running\n\n{runs}\n\n"
        f"{_passing()}\n"
        "## In the configuration\n\nExit code 1. Each names file and line.\n\n"
        f"| Code | Meaning |\n|---|---|\n{config}\n\n"
        f"## Found by `rivet validate`\n\n| Code | Kind | Exit code |\n|---|---|---|\n{verify}\n"
    )


def _passing() -> str:
    """Return the databases' own codes that mean "ask again", by engine and seconds added to the pause."""
    rows = []
    for engine, title in ENGINES_WITH_CODES.items():
        codes = import_module(f"rivet_resources.engines.{engine}.errors").PASSING
        seconds = codes if isinstance(codes, Mapping) else dict.fromkeys(sorted(codes), 0.0)
        told = "; ".join(
            f"{pause:g} s: {', '.join(str(code) for code in seconds if seconds[code] == pause)}"
            for pause in sorted(set(seconds.values()), reverse=True)
        )
        rows.append(f"| {title} | {told} |")
    return PASSING_HEAD + "\n".join(rows) + "\n"


def _modules_with_codes() -> Iterator[Path]:
    """Yield the modules that define errors of their own, beside the tree in `errors.py`."""
    for package in ("rivet_assets", "rivet_resources"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if '    code = "RIVET_' in path.read_text(encoding="utf-8"):
                yield path


def _subclasses(root: type[RivetError]) -> Iterator[type[RivetError]]:
    yield root
    for each in root.__subclasses__():
        yield from _subclasses(each)


def _first(text: str | None) -> str:
    return re.split(r"\n\s*\n", inspect.cleandoc(text or ""))[0]


PAGES: Mapping[str, Callable[[], str]] = {"yaml.md": yaml_page, "cli.md": cli_page, "errors.md": errors_page}


def main() -> None:
    """Write all pages."""
    FOLDER.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
