"""How destinations name places: placeholders, forbidden components, reserved folders, endpoints, part names.

Belongs here: rules that local disks and object stores share, and nothing that touches either. Not here:
what one store answers (its own file).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from datetime import UTC, date, datetime
from email.utils import parsedate_to_datetime
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator

from rivet_resources.contracts.rows.value_windows import SHARD_COLUMN

# Below an export's root: invisible to readers.
STAGED = "_staged"
# Below an export's root: one manifest per window.
MANIFESTS = "_rivet"
# Below an export's root: rows that could not be exported; readers pass over such names.
QUARANTINE = "_quarantine"
PROBE = ".rivet_doctor_probe"  # `contract.md`, 8.1
PLACEHOLDERS = ("date", "export", "table")
PARTITION = "{partition}"  # of the original: the folders of `partition_by`, which Rivet puts last in any case
LAST_PARTITION = re.compile(r"(^|[/\\])\{partition\}[/\\]?$")
OWN_FOLDERS = frozenset({STAGED, MANIFESTS, QUARANTINE})
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

# `{export}_{YYYYMMDDTHHMMSS.mmm}_{nonce}` in a run id, `…_{YYYYMMDD_HHMMSS_mmm}_{nonce}` in a part's name.
STAMP = re.compile(r"_(\d{8})[T_](\d{6})[._]\d{3}_[0-9a-f]{6}")
# `{export}_{YYYYMMDD_HHMMSS_mmm}_{run nonce}[_chunk{i}][_part{N}].{ext}` (`contract.md`, 8.1, Ours).
# A part of changes begins with `cdc-{position}-{part}` instead of its export (`cdc.md`, section 3).
CHANGE_STEM = re.compile(r"cdc-[0-9a-z]+-\d{6}")
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
PART_NAME = re.compile(r"(?P<export>.+)_\d{8}_\d{6}_\d{3}_(?P<nonce>[0-9a-f]{6})(_chunk\d+)?(_part\d+)?\.[a-z0-9.]+")


def check_template(text: str) -> str:
    """Accept a path or prefix as configured.

    Raises:
        ValueError: a `..` component, a folder that belongs to another export, a placeholder other than {date},
            {export} and {table}, or {partition} anywhere but at the end.
    """
    place = LAST_PARTITION.sub("", text)
    if PARTITION in place:
        raise ValueError(f"has {PARTITION}, which must be the last folder, such as lake/{{export}}/{PARTITION}")
    if ".." in re.split(r"[/\\]", place):
        raise ValueError(f"{text!r} has a '..' component; write the place itself, absolute or below the working folder")
    if own := [each for each in re.split(r"[/\\]", place) if each in OWN_FOLDERS]:
        raise ValueError(
            f"{text!r} leads into {own[0]}, where an export keeps its own files and removes others; name a place "
            f"outside of it"
        )
    unknown = [name for name in re.findall(r"\{([^{}]*)\}", place) if name not in PLACEHOLDERS]
    if unknown:
        allowed = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
        raise ValueError(f"has the placeholder {{{unknown[0]}}}; allowed are {allowed}")
    return text


def check_prefix(text: str) -> str:
    """Accept a prefix of keys in a bucket as configured.

    Raises:
        ValueError: as `check_template`, or a `.` component: keys are no paths, but some stores and clients take them
            for one, and list the objects elsewhere than they were asked to put them.
    """
    if "." in text.split("/"):
        raise ValueError(f"{text!r} has a '.' component, which keys of a bucket must not have; leave it out")
    return check_template(text)


Template = Annotated[str, AfterValidator(check_template)]
PrefixTemplate = Annotated[str, AfterValidator(check_prefix)]


def with_date(template: str, day: date) -> str:
    """Fill `{date}` only, so that a run that crosses midnight stays in one place."""
    return template.replace("{date}", day.isoformat())


def export_path(template: str, export: str) -> str:
    """Address an export: the template itself where it names the export, else `<template>/<export>`."""
    template = LAST_PARTITION.sub("", template)
    named = "{export}" in template or "{table}" in template
    filled = with_date(template, datetime.now(UTC).date()).replace("{export}", export).replace("{table}", export)
    # Of `/` alone the one slash stays: it is the root of the file system.
    filled = filled.rstrip("/") if filled.strip("/") else filled[:1]
    if named:
        return filled
    return f"{filled.rstrip('/')}/{export}" if filled else export


def export_prefix(template: str, export: str) -> str:
    """Address an export in a bucket: no `/` at either end, no empty component."""
    return re.sub(r"/{2,}", "/", export_path(template.strip("/"), export)).strip("/")


def bucket_of(address: str) -> dict[str, str]:
    """Read the keys of a destination out of what stands behind its scheme: `bucket/prefix`; none without a bucket."""
    bucket, _, prefix = address.partition("/")
    return {"bucket": bucket, "prefix": prefix.strip("/")} if bucket else {}


def check_endpoint(endpoint: str | None, *, plain_http_allowed: bool) -> None:
    """Accept https anywhere, and plain http where nobody can listen or the user said so.

    Raises:
        ValueError: not an http(s) URL, it carries credentials, or it is plain http to another machine.
    """
    if endpoint is None:
        return
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("endpoint is not a URL; write https://host or https://host:port")
    if parts.username or parts.password:
        raise ValueError("endpoint carries credentials; write them into environment variables and name these")
    if parts.scheme == "http" and parts.hostname not in LOOPBACK and not plain_http_allowed:
        raise ValueError(
            f"endpoint {parts.hostname} is plain http, so keys and rows would travel unprotected; "
            f"use https, or set `allow_insecure_endpoint: true`"
        )


def date_of(header: str | None) -> datetime | None:
    """Read an HTTP Date header; None when there is none, or it is no date."""
    try:
        return parsedate_to_datetime(header or "").astimezone(UTC)
    except ValueError:
        return None


def nonce_of(run_id: str) -> str:
    """Return the six characters of a run id that stand in the names of its parts."""
    return run_id[-6:]


def part_nonce(path: str, *, export: str) -> str | None:
    """Read the run nonce out of a part's path; None when Rivet did not write that file for this export."""
    match = PART_NAME.fullmatch(path.rpartition("/")[2])
    ours = match is not None and (match["export"] == stem_of(export) or CHANGE_STEM.fullmatch(match["export"]))
    return match["nonce"] if match and ours else None


def stem_of(export: str) -> str:
    """Name the parts of an export: a table of several, `<export>/<table>`, by itself; a shard by its export."""
    whole, _, last = export.rpartition("/")
    return whole if last.startswith(f"{SHARD_COLUMN}=") else last


def read_start(run: str) -> datetime | None:
    """Read when a run began out of its id, or out of the path of one of its parts; None when it is neither."""
    found = STAMP.search(run)
    return datetime.strptime(found[1] + found[2], "%Y%m%d%H%M%S").replace(tzinfo=UTC) if found else None


def stays_inside(path: str) -> bool:
    """Return whether a path out of a manifest, which may have been edited, lies below the export's root."""
    return bool(path) and not path.startswith(("/", "\\")) and ".." not in re.split(r"[/\\]", path)


def check_place(path: str) -> str:
    """Return the path of a file, or of a folder, that a manifest or a record names, once it is known to be harmless.

    Raises:
        ValueError: it leads out of the export's folder, or into what Rivet keeps there for itself.
    """
    components = path.split("/")
    if not stays_inside(path) or {"", "."} & set(components) or CONTROL.search(path):
        raise ValueError("names a place outside of the export's folder; allowed are paths below it, without `..`")
    if components[0] in (STAGED, MANIFESTS):
        raise ValueError(
            f"names a place in {components[0]}/, which Rivet keeps for itself; allowed are paths beside it"
        )
    return path


def check_folder(path: str) -> str:
    """Return a window's folder as `check_place` does; '' is the export's own.

    Raises:
        ValueError
    """
    return check_place(path) if path else path


def check_staged(path: str) -> str:
    """Return the path of a staged file that a record names, once it is known to lie below `_staged/<run id>/`.

    Raises:
        ValueError: it lies elsewhere.
    """
    top, _, rest = path.partition("/")
    if top != STAGED or "/" not in rest:
        raise ValueError(f"names a place outside of {STAGED}/")
    check_place(rest)
    return path


Place = Annotated[str, AfterValidator(check_place)]
WindowFolder = Annotated[str, AfterValidator(check_folder)]


def parent_of(path: str) -> str:
    """Return the folder of a path with its `/`; '' of a path in the root itself."""
    return path[: path.rfind("/") + 1]


def is_reserved(path: str) -> bool:
    """Return whether a path relative to an export's root is hidden from listings: staged, or a stray temp file."""
    return path.startswith(f"{STAGED}/") or path.rpartition("/")[2].startswith(".")


def runs_of(paths: Iterable[str]) -> set[str]:
    """Read the run ids out of paths below `_staged/`."""
    return {run_id for path in paths if (run_id := staged_run(path, keep=()))}


def staged_run(path: str, *, keep: Collection[str]) -> str | None:
    """Read the run id out of `_staged/<run id>/…`; None when the path is elsewhere or its run is in `keep`."""
    top, _, rest = path.partition("/")
    run_id = rest.partition("/")[0]
    return run_id if top == STAGED and run_id and run_id not in keep else None
