"""A client of schema registries that speak Confluent's HTTP API: Confluent's own, Karapace, Apicurio, ours.

Belongs here: requests, their bounds, and what an answer or a silence means. Not here: whether a window may be
published. Source: Confluent documentation, "Schema Registry API Reference".

Every answer is bounded in time and size, no redirect is followed (it could carry the password elsewhere), and what a
registry says is checked before it is believed.
"""

from __future__ import annotations

import base64
import json
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection, IncompleteRead
from pathlib import Path
from socket import socket
from typing import Any
from urllib.parse import quote, urlsplit

from rivet_resources.contracts.schema_registry import COMPATIBILITIES, Compatibility, SchemaFormat, SubjectVersion
from rivet_resources.deadlines import Silent, deadline, hang_up
from rivet_resources.schema_registry.errors import (
    SchemaIncompatible,
    SchemaRegistryAuth,
    SchemaRegistryContradiction,
    SchemaRegistryError,
    SchemaRegistryTls,
    SchemaRegistryUnreachable,
)
from rivet_resources.tls_faults import tls_fault

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
MOST_BYTES = 8 << 20  # of one answer
LONGEST_TOLD = 300  # of a registry's own message
# Answers after which the same request may be taken later. Source: RFC 9110, 15.5 and 15.6; RFC 6585, section 4.
PASSING = frozenset({408, 429, 500, 502, 503, 504})
FORMATS: Mapping[str, SchemaFormat] = {"AVRO": "avro", "JSON": "json", "PROTOBUF": "protobuf"}
WORDS: Mapping[SchemaFormat, str] = {form: word for word, form in FORMATS.items()}


@dataclass(frozen=True)
class HttpSchemaRegistry:
    """A registry at a URL; `url` has neither user nor password."""

    url: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca_file: Path | None = None
    timeout_seconds: float = 10.0

    @property
    def name(self) -> str:
        """Name it for people."""
        return f"at {self.url}"

    @property
    def key(self) -> str:
        """Name it in the store."""
        return self.url.rstrip("/")

    def subjects(self) -> list[str]:
        """List the subjects, sorted."""
        found = self._ask("GET", "/subjects")
        return sorted(_list_of(found, str, self, "a list of subjects"))

    def versions(self, subject: str) -> list[int]:
        """List the versions of a subject, oldest first; [] where there is no such subject."""
        found = self._ask("GET", f"/subjects/{_part(subject)}/versions", or_none=True)
        return [] if found is None else sorted(_list_of(found, int, self, f"the versions of {subject}"))

    def version(self, subject: str, number: int) -> SubjectVersion | None:
        """Read one version; None where it is not there, or no more."""
        found = self._ask("GET", f"/subjects/{_part(subject)}/versions/{number}", or_none=True)
        if found is None:
            return None
        read = self._version(found, subject)
        # What a registry says is checked before it is believed: a proxy, or a page of a login, also answers 200 with
        # JSON.
        if read.version != number:
            raise self._contradiction(f"answers version {read.version} of {subject} where {number} was asked for")
        return read

    def schema(self, number: int) -> tuple[SchemaFormat, str] | None:
        """Read the schema of an id; None where there is none."""
        found = self._ask("GET", f"/schemas/ids/{number}", or_none=True)
        if found is None:
            return None
        text = found.get("schema") if isinstance(found, dict) else None
        if not isinstance(text, str):
            raise self._contradiction(f"answers no schema for id {number}")
        return self._format(found), text

    def find(self, subject: str, form: SchemaFormat, text: str) -> SubjectVersion | None:
        """Find the version of a subject that has this schema; None where none has."""
        found = self._ask("POST", f"/subjects/{_part(subject)}", _body(form, text), or_none=True)
        # Apicurio's answer has no type here.
        return (
            None
            if found is None
            else self._version({"schema": text, "schemaType": WORDS[form], **_plain(found)}, subject)
        )

    def check_owner(self, subject: str, *, owner: str) -> None:
        """Return: registries of this kind keep no owners."""

    def declare(self, subject: str, rule: Compatibility, *, owner: str) -> None:
        """Make a rule the subject's, where the subject is new; of others whoever runs the registry decides."""
        # Only of a new subject: on one that is there, somebody chose the rule for its other producers as well.
        if not self.versions(subject) and self.compatibility(subject) != rule:
            self.set_compatibility(subject, rule)

    def register(self, subject: str, form: SchemaFormat, text: str, *, owner: str) -> int:
        """Add a version, or find the one that is there; its id.

        Raises:
            SchemaIncompatible: the registry's own rule refuses it.
        """
        found = self._ask("POST", f"/subjects/{_part(subject)}/versions", _body(form, text))
        number = found.get("id") if isinstance(found, dict) else None
        if not isinstance(number, int) or isinstance(number, bool):
            raise self._contradiction(f"answers no id for a schema of {subject}")
        return number

    def compatibility(self, subject: str) -> Compatibility:
        """Return the rule of a subject: its own, else that of all."""
        return self.own_compatibility(subject) or self._rule(self._ask("GET", "/config"), "all subjects")

    def own_compatibility(self, subject: str) -> Compatibility | None:
        """Return the rule that was set for a subject; None where none was."""
        found = self._ask("GET", f"/config/{_part(subject)}", or_none=True)
        return None if found is None else self._rule(found, subject)

    def set_compatibility(self, subject: str, rule: Compatibility | None) -> None:
        """Set the rule of a subject; None: it has none of its own."""
        if rule is None:
            self._ask("DELETE", f"/config/{_part(subject)}", or_none=True)
        else:
            self._ask("PUT", f"/config/{_part(subject)}", {"compatibility": rule.upper()})

    def _rule(self, found: Any, subject: str) -> Compatibility:
        told = found.get("compatibilityLevel") if isinstance(found, dict) else None
        rule = next((each for each in COMPATIBILITIES if each.upper() == told), None)
        if rule is None:
            raise self._contradiction(f"answers no rule of compatibility for {subject}")
        return rule

    # --- one request -----------------------------------------------------------------------------

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, *, or_none: bool = False) -> Any:
        """Make a request and read its JSON.

        Args:
            or_none: return None where there is no such thing.
        """
        status, content = self._send(method, path, None if body is None else json.dumps(body).encode())
        if status == 404 and or_none:
            return None
        if status >= 300:
            raise self._refusal(status, content)
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as error:
            raise self._contradiction(f"answers {method} {path.partition('?')[0]} with what is no JSON") from error

    def _send(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        parts = urlsplit(self.url)
        line = self._connection(parts.hostname or "", parts.port, is_https=parts.scheme == "https")
        headers = {"Accept": f"{CONTENT_TYPE}, application/json", "Content-Type": CONTENT_TYPE, "User-Agent": "rivet"}
        if self.username is not None:
            # Sent with each request to this host alone: no redirect is followed, which could carry the password
            # elsewhere.
            credentials = f"{self.username}:{self.password or ''}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(credentials).decode()}"
        # For the whole answer: `timeout` of the connection is of each read, and a server that sends a byte now and then
        # would never run into it.
        until = time.monotonic() + self.timeout_seconds
        # An answer that says it is the connection's last one takes the socket from `line`, and its bytes still come in.
        lines: list[socket] = []
        try:
            with deadline(self.timeout_seconds, lambda: hang_up([*lines, *([line.sock] if line.sock else [])])):
                line.connect()
                lines.append(line.sock)
                # Confluent's own Python client brings librdkafka and five more packages for eight requests, so these
                # are made here.
                line.request(method, parts.path.rstrip("/") + path, body, headers)
                answer = line.getresponse()
                # One byte more than is taken, so that what is too large is known without being read to its end.
                content = answer.read(MOST_BYTES + 1)
                # A line that was hung up amid the headers looks like their end.
                if time.monotonic() >= until:
                    raise TimeoutError
                if answer.length and len(content) <= MOST_BYTES:  # `read` leaves that to its caller
                    raise IncompleteRead(content, answer.length)
        except (Silent, OSError, HTTPException) as error:
            raise self._fault(error) from error
        finally:
            line.close()
        if len(content) > MOST_BYTES:
            raise self._contradiction(f"answers more than {MOST_BYTES >> 20} MB to {method} {path}")
        return answer.status, content

    def _connection(self, host: str, port: int | None, *, is_https: bool) -> HTTPConnection:
        if not is_https:
            return HTTPConnection(host, port, timeout=self.timeout_seconds)
        try:
            context = ssl.create_default_context(cafile=None if self.ca_file is None else str(self.ca_file))
        except (OSError, ssl.SSLError) as error:
            raise SchemaRegistryTls(
                f"The schema registry {self.name} cannot be asked: the file of authorities {self.ca_file} cannot be "
                f"read. Fix `ca_file` of `schema_registry`: a PEM file."
            ) from error
        return HTTPSConnection(host, port, timeout=self.timeout_seconds, context=context)

    # --- what an answer means --------------------------------------------------------------------

    def _version(self, found: Any, subject: str) -> SubjectVersion:
        told = _plain(found)
        numbers = [told.get(key) for key in ("version", "id")]
        if not isinstance(told.get("schema"), str) or any(type(each) is not int or each < 0 for each in numbers):
            raise self._contradiction(f"answers no version for {subject}")
        if told.get("subject", subject) != subject:
            raise self._contradiction(f"answers a version of another subject than {subject}")
        version, number = numbers
        return SubjectVersion(
            subject, version, number, self._format(told), told["schema"], bool(told.get("references"))  # type: ignore[arg-type]
        )  # fmt: skip

    def _format(self, found: Mapping[str, Any]) -> SchemaFormat:
        word = found.get("schemaType") or "AVRO"
        if word not in FORMATS:
            raise self._contradiction(f"has a schema of type {str(word)[:40]}; Rivet knows {', '.join(FORMATS)}")
        return FORMATS[word]

    def _refusal(self, status: int, content: bytes) -> Exception:
        """Return what an answer that is no success means."""
        said = _message(content)
        if status in (401, 403):
            whose = f"user {self.username}" if self.username else "whoever asks without `username`"
            return SchemaRegistryAuth(
                f"The schema registry {self.name} does not let {whose} do this (HTTP {status}). Look at `username` and "
                f"`password_env` of `schema_registry`, and at the user's rights."
            )
        if status == 409:
            return SchemaIncompatible(f"The schema registry {self.name} refuses the schema by its own rule: {said}")
        if status in PASSING:
            return SchemaRegistryUnreachable(
                f"The schema registry {self.name} cannot answer at the moment (HTTP {status}: {said}). Run again later."
            )
        if 300 <= status < 400:
            return SchemaRegistryError(
                f"The schema registry {self.name} sends requests elsewhere (HTTP {status}), which are not followed. "
                f"Write the final address as `url` of `schema_registry`."
            )
        return SchemaRegistryError(f"The schema registry {self.name} refuses (HTTP {status}): {said}")

    def _fault(self, error: Exception) -> Exception:
        """Return what it means that there was no answer; texts of libraries are not shown."""
        reason = tls_fault(error) if isinstance(error, ssl.SSLError) else None
        if reason is not None:
            return SchemaRegistryTls(
                f"The schema registry {self.name} cannot be asked: {reason.why}. Ask it by a name of its certificate, "
                f"and name the PEM file of an authority of your own as `ca_file` of `schema_registry`."
            )
        is_slow = isinstance(error, Silent | TimeoutError)
        why = f"did not answer within {self.timeout_seconds:.15g} s" if is_slow else f"is away ({type(error).__name__})"
        return SchemaRegistryUnreachable(
            f"The schema registry {self.name} {why}. Run again later; nothing is published unchecked."
        )

    def _contradiction(self, what: str) -> SchemaRegistryContradiction:
        return SchemaRegistryContradiction(
            f"The schema registry {self.name} {what}. Look whether `url` of `schema_registry` is a schema registry."
        )


def _body(form: SchemaFormat, text: str) -> dict[str, Any]:
    """Return a schema as requests carry it; without a type it is Avro, also to servers that know no other."""
    return {"schema": text} if form == "avro" else {"schema": text, "schemaType": WORDS[form]}


def _part(text: str) -> str:
    return quote(text, safe="")


def _plain(found: Any) -> dict[str, Any]:
    return found if isinstance(found, dict) else {}


def _list_of(found: Any, kind: type, registry: HttpSchemaRegistry, what: str) -> list[Any]:
    # By `type`, since `isinstance` takes a truth value for a whole number.
    if not isinstance(found, list) or any(type(each) is not kind for each in found):
        raise registry._contradiction(f"answers what is not {what}")
    return found


def _message(content: bytes) -> str:
    """Return a registry's own words, in one short line."""
    try:
        told = _plain(json.loads(content)).get("message")
    except (ValueError, RecursionError):
        told = None
    text = " ".join(str(told or "without a reason").split())
    return text if len(text) <= LONGEST_TOLD else f"{text[:LONGEST_TOLD]}…"
