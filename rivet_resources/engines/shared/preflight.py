"""What engines' own examinations share: how a line, a version and the connections that are left are judged.

Belongs here: judging facts of one kind, whoever told them. Not here: asking (`engines/*/preflight.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rivet_resources.contracts.evidence import Finding

CROWDED = 0.8  # of the connections that the server allows
SPARE = 2  # connections of a run beside its tasks': planning, the governor


def line_finding(mode: str, *, cipher: str, is_near: bool) -> Finding:
    """Judge how the very line that asks is protected.

    Args:
        mode: of the `tls:` block, or the driver's word for its own.
        cipher: version or cipher as the server tells it, '' for a plain line.
        is_near: the host is this machine, where nobody can listen.
    """
    # The cipher is what the server says of this very connection. What was configured may not be what was agreed on.
    if not cipher:
        if is_near:
            return Finding("tls", "ok", "plain, to this machine")
        text = "the line is not protected: passwords and rows can be read on their way (`tls: {mode: disable}`)"
        return Finding("tls", "warn", text, "tls: {mode: verify-full}")
    # `require` encrypts to whoever answers, also to somebody on the way.
    if mode == "require" and not is_near:
        text = f"{cipher}, but nobody checks who answers (`tls: {{mode: require}}`)"
        return Finding("tls", "warn", text, "tls: {mode: verify-full, ca_file: <the authority's PEM file>}")
    checked = {"verify-full": "certificate and host name checked", "verify-ca": "certificate checked, not its name"}
    return Finding("tls", "ok", f"{cipher}, {checked.get(mode, 'unchecked, to this machine')}")


def version_finding(product: str, version: tuple[int, ...], *, oldest: tuple[int, ...], newest: int) -> Finding:
    """Compare a server's version with those that this program is written for, by their leading numbers."""
    told = ".".join(map(str, version))
    if version[: len(oldest)] < oldest:
        wanted = ".".join(map(str, oldest))
        return Finding("version", "warn", f"{product} {told} is older than {wanted}, the oldest this is written for",
                       f"Upgrade the server to {wanted} or newer.")  # fmt: skip
    if version[0] > newest:
        text = f"{product} {told} is newer than {newest}, the newest this was written for; types may have been added"
        return Finding("version", "warn", text, "Look at a new table's types with `rivet check` before relying on it.")
    return Finding("version", "ok", f"{product} {told}")


def connections_finding(used: int, limit: int, *, reserved: int, needed: int, fix: str) -> Finding:
    """Judge how many connections are left for people like us.

    Args:
        used: of everybody, ours too.
        reserved: for administrators, out of `limit`.
        needed: by the widest export, its tasks only.
    """
    left = max(limit - reserved - used, 0)
    said = f"{used} of {limit} connections in use" + (f", {reserved} kept for administrators" if reserved else "")
    # The connection that asks will be free again.
    if needed and left + 1 < needed + SPARE:
        text = f"{said}: {left} left, and the widest export opens up to {needed + SPARE} (or lower its `parallel`)"
        return Finding("connections", "fail", text, fix)
    if used >= CROWDED * (limit - reserved):
        return Finding("connections", "warn", f"{said}: {left} left", fix)
    return Finding("connections", "ok", said)


def grants_finding(user: str, lacking: Iterable[str], script: Iterable[str]) -> Iterator[Finding]:
    """Yield which tables the user may not read, and the statements that let it; nothing when it may read all."""
    tables = list(lacking)
    if tables:
        text = f"user {user} may not read {', '.join(tables)}"
        yield Finding("grants", "fail", text, " ".join(dict.fromkeys(script)))
