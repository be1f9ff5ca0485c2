"""Confluent's HTTP API over the registry in the state store, so that other people's serializers can use it.

Belongs here: paths, statuses and error codes. Not here: rules (`embedded.py`). Source: Confluent documentation, "Schema
Registry API Reference"; its error codes.

Not offered, and refused by name: references between schemas, contexts, modes other than READWRITE and READONLY.
"""

from __future__ import annotations

import base64
import hmac
import json
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, Literal, cast
from urllib.parse import parse_qs, unquote, urlsplit

from rivet_resources.contracts.schema_registry import COMPATIBILITIES, Compatibility, SchemaFormat, SubjectVersion
from rivet_resources.errors import ConfigError, RivetError
from rivet_resources.schema_registry.client import CONTENT_TYPE, FORMATS, WORDS
from rivet_resources.schema_registry.embedded import READ_ONLY, READ_WRITE, EmbeddedSchemaRegistry
from rivet_resources.schema_registry.errors import SchemaIncompatible, SchemaUnreadable, SubjectTaken
from rivet_resources.schema_registry.languages.language import breaks, language
from rivet_resources.state.errors import StateUnavailable

MOST_BYTES = 8 << 20  # of one request
IDLE_SECONDS = 30.0
NUMBER = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)
LATEST = ("latest", "-1")
NO_SUBJECT, NO_VERSION, NO_SCHEMA, NO_RULE = 40401, 40402, 40403, 40408
BAD_SCHEMA, BAD_VERSION, BAD_RULE, BAD_MODE, NOT_WRITABLE = 42201, 42202, 42203, 42204, 42205


class _Refused(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


@dataclass(frozen=True)
class _Request:
    """One request: the parts of its path, its query, its body."""

    names: tuple[str, ...]
    query: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)

    def asks(self, key: str) -> bool:
        """Return whether the query says so."""
        return self.query.get(key, "").lower() == "true"


@dataclass(frozen=True)
class RegistryApi:
    """What each path answers; knows no socket."""

    registry: EmbeddedSchemaRegistry

    def answer(self, method: str, target: str, body: bytes) -> tuple[int, Any]:
        """Return status and document of a request."""
        parts = urlsplit(target)
        try:
            # Routed before the body is read: an unknown path is told as such, whatever was sent to it.
            found, names = _route(method, parts.path)
            query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
            return 200, found(self, _Request(names, query, _document(body)))
        except _Refused as error:
            return error.status, {"error_code": error.code, "message": str(error)}
        # Statuses and codes as Confluent's server has them: serializers decide by these whether to try again.
        except SchemaIncompatible as error:
            return 409, {"error_code": 409, "message": str(error)}
        except SchemaUnreadable as error:
            return 422, {"error_code": BAD_SCHEMA, "message": str(error)}
        except SubjectTaken as error:
            return 403, {"error_code": 40301, "message": str(error)}
        except StateUnavailable:
            return 503, {"error_code": 50301, "message": "The state store does not answer at the moment."}
        except RivetError as error:
            return 422, {"error_code": NOT_WRITABLE, "message": str(error)}

    # --- subjects --------------------------------------------------------------------------------

    def subjects(self, request: _Request) -> list[str]:
        """List them; `deleted`, `subjectPrefix`."""
        # `:*:` means the subjects of all contexts, of which there are none here.
        prefix = request.query.get("subjectPrefix", "").removeprefix(":*:")
        return [each for each in self.registry.subjects(deleted=request.asks("deleted")) if each.startswith(prefix)]

    def versions(self, request: _Request) -> list[int]:
        """List the versions of one."""
        return [each.version for each in self._versions(request.names[0], deleted=request.asks("deleted"))]

    def version(self, request: _Request) -> dict[str, Any]:
        """Show a version, by its number or as `latest`."""
        return _shown(self._version(request))

    def version_text(self, request: _Request) -> Any:
        """Show a version's schema alone."""
        found = self._version(request)
        return found.text if found.format == "protobuf" else json.loads(found.text)

    def find(self, request: _Request) -> dict[str, Any]:
        """Find which version has a schema."""
        subject, (form, text) = request.names[0], _schema(request.body)
        # A subject that is not there has an error code of its own, apart from a schema that is not in it.
        self._versions(subject)
        found = self.registry.find(subject, form, text)
        if found is None:
            raise _Refused(404, NO_SCHEMA, "Schema not found")
        return _shown(found)

    def register(self, request: _Request) -> dict[str, Any]:
        """Add a version."""
        form, text = _schema(request.body)
        subject = request.names[0]
        # Nobody's: over HTTP no export speaks, so a subject that an export owns refuses it.
        number = self.registry.register(subject, form, text, owner="")
        found = self.registry.find(subject, form, text)
        told = {"id": number, **({"version": found.version} if found else {})}
        return told if form == "avro" else {**told, "schemaType": WORDS[form]}

    def delete_subject(self, request: _Request) -> list[int]:
        """Delete all versions: hide them, and with `permanent` those that are hidden for good."""
        subject, permanent = request.names[0], request.asks("permanent")
        found = self._versions(subject, deleted=permanent)
        # For good in two steps, as Confluent's server asks: a slip hides a subject, and takes nothing away.
        if permanent and self.registry.versions(subject):
            raise _Refused(404, 40405, f"Subject '{subject}' was not deleted first before being permanently deleted")
        numbers = [each.version for each in found]
        self.registry.delete(subject, numbers, permanent=permanent)
        return numbers

    def delete_version(self, request: _Request) -> int:
        """Delete one version, as `delete_subject`."""
        permanent = request.asks("permanent")
        found = self._version(request, deleted=permanent)
        if permanent and found.version in self.registry.versions(found.subject):
            message = f"Subject '{found.subject}' Version {found.version} was not deleted first before being "
            raise _Refused(404, 40407, message + "permanently deleted")
        self.registry.delete(found.subject, [found.version], permanent=permanent)
        return found.version

    # --- ids -------------------------------------------------------------------------------------

    def schema(self, request: _Request) -> dict[str, Any]:
        """Show the schema of an id."""
        form, text = self._schema(request)
        return {"schema": text} if form == "avro" else {"schemaType": WORDS[form], "schema": text}

    def schema_text(self, request: _Request) -> Any:
        """Show the schema of an id alone."""
        form, text = self._schema(request)
        return text if form == "protobuf" else json.loads(text)

    def schema_subjects(self, request: _Request) -> list[str]:
        """List the subjects that have a schema."""
        self._schema(request)
        return sorted({subject for subject, _ in self.registry.places_of(int(request.names[0]))})

    def schema_versions(self, request: _Request) -> list[dict[str, Any]]:
        """List the versions that have a schema."""
        self._schema(request)
        found = self.registry.places_of(int(request.names[0]))
        return [{"subject": subject, "version": version} for subject, version in found]

    def types(self, _: _Request) -> list[str]:
        """List the languages."""
        return list(FORMATS)

    # --- compatibility, mode ---------------------------------------------------------------------

    def is_compatible(self, request: _Request) -> dict[str, Any]:
        """Hold a schema against one version, or against those that the subject's rule names."""
        subject, (form, text) = request.names[0], _schema(request.body)
        language(form).canonical(text)  # raises
        rule = self.registry.compatibility(subject)
        if len(request.names) > 1:
            olds = [self._version(request)]
            rule = cast(Compatibility, rule.removesuffix("_transitive"))
        else:
            olds = self._versions(subject)
        same = [each.text for each in olds if each.format == form]
        found = breaks(form, text, same, rule=rule)
        # What is in another language cannot be compared, and readers of it understand nothing of the new one.
        if len(same) < len(olds) and rule != "none":
            found = ["the versions are of another language", *found]
        return {"is_compatible": not found, **({"messages": found} if request.asks("verbose") else {})}

    def rule(self, request: _Request) -> dict[str, str]:
        """Show the rule of a subject, or of all."""
        subject = "".join(request.names)
        own = self.registry.own_compatibility(subject)
        if own is None and subject and not request.asks("defaultToGlobal"):
            raise _Refused(
                404, NO_RULE, f"Subject '{subject}' does not have subject-level compatibility level configured"
            )
        return {"compatibilityLevel": (own or self.registry.compatibility(subject)).upper()}

    def set_rule(self, request: _Request) -> dict[str, str]:
        """Set the rule of a subject, or of all."""
        told = request.body.get("compatibility")
        rule = next((each for each in COMPATIBILITIES if each.upper() == str(told).upper()), None)
        if rule is None:
            raise _Refused(422, BAD_RULE, f"Invalid compatibility level; it is one of {_upper(COMPATIBILITIES)}")
        self.registry.set_compatibility("".join(request.names), rule)
        return {"compatibility": rule.upper()}

    def delete_rule(self, request: _Request) -> dict[str, str]:
        """Take the rule of a subject, or of all, away."""
        subject = "".join(request.names)
        before = self.registry.own_compatibility(subject)
        if before is None and subject:
            raise _Refused(404, NO_SUBJECT, f"Subject '{subject}' not found.")
        self.registry.set_compatibility(subject, None)
        return {"compatibilityLevel": (before or self.registry.compatibility(subject)).upper()}

    def mode(self, request: _Request) -> dict[str, str]:
        """Show whether a subject, or all, may be written."""
        return {"mode": self.registry.mode("".join(request.names))}

    def set_mode(self, request: _Request) -> dict[str, str]:
        """Set whether a subject, or all, may be written."""
        mode = str(request.body.get("mode")).upper()
        if mode not in (READ_WRITE, READ_ONLY):
            raise _Refused(422, BAD_MODE, f"Invalid mode; it is one of {READ_WRITE}, {READ_ONLY}")
        self.registry.set_mode("".join(request.names), mode)
        return {"mode": mode}

    def nothing(self, _: _Request) -> dict[str, str]:
        """Answer that something is here."""
        return {}

    # --- looking up ------------------------------------------------------------------------------

    def _versions(self, subject: str, *, deleted: bool = False) -> list[SubjectVersion]:
        found = self.registry.all_versions(subject, deleted=deleted)
        if not found:
            raise _Refused(404, NO_SUBJECT, f"Subject '{subject}' not found.")
        return found

    def _version(self, request: _Request, *, deleted: bool = False) -> SubjectVersion:
        subject, wanted = request.names
        if wanted not in LATEST and not NUMBER.fullmatch(wanted):
            message = f"The specified version '{wanted[:20]}' is not a valid version id; it is a number or latest"
            raise _Refused(422, BAD_VERSION, message)
        there = self._versions(subject, deleted=deleted or request.asks("deleted"))
        found = there[-1:] if wanted in LATEST else [each for each in there if each.version == int(wanted)]
        if not found:
            raise _Refused(404, NO_VERSION, f"Version {wanted} not found.")
        return found[0]

    def _schema(self, request: _Request) -> tuple[SchemaFormat, str]:
        number = request.names[0]
        found = self.registry.schema(int(number)) if NUMBER.fullmatch(number) else None
        if found is None:
            raise _Refused(404, NO_SCHEMA, f"Schema {number[:20]} not found")
        return found


Answer = Callable[[RegistryApi, _Request], Any]
Method = Literal["GET", "POST", "PUT", "DELETE"]

# A * stands for one part of a path; the first path that fits counts.
ROUTES: tuple[tuple[Method, str, Answer], ...] = (
    ("GET", "/", RegistryApi.nothing),
    ("GET", "/subjects", RegistryApi.subjects),
    ("POST", "/subjects/*", RegistryApi.find),
    ("DELETE", "/subjects/*", RegistryApi.delete_subject),
    ("GET", "/subjects/*/versions", RegistryApi.versions),
    ("POST", "/subjects/*/versions", RegistryApi.register),
    ("GET", "/subjects/*/versions/*", RegistryApi.version),
    ("DELETE", "/subjects/*/versions/*", RegistryApi.delete_version),
    ("GET", "/subjects/*/versions/*/schema", RegistryApi.version_text),
    ("GET", "/schemas/types", RegistryApi.types),
    ("GET", "/schemas/ids/*", RegistryApi.schema),
    ("GET", "/schemas/ids/*/schema", RegistryApi.schema_text),
    ("GET", "/schemas/ids/*/subjects", RegistryApi.schema_subjects),
    ("GET", "/schemas/ids/*/versions", RegistryApi.schema_versions),
    ("POST", "/compatibility/subjects/*/versions", RegistryApi.is_compatible),
    ("POST", "/compatibility/subjects/*/versions/*", RegistryApi.is_compatible),
    ("GET", "/config", RegistryApi.rule),
    ("PUT", "/config", RegistryApi.set_rule),
    ("DELETE", "/config", RegistryApi.delete_rule),
    ("GET", "/config/*", RegistryApi.rule),
    ("PUT", "/config/*", RegistryApi.set_rule),
    ("DELETE", "/config/*", RegistryApi.delete_rule),
    ("GET", "/mode", RegistryApi.mode),
    ("PUT", "/mode", RegistryApi.set_mode),
    ("GET", "/mode/*", RegistryApi.mode),
    ("PUT", "/mode/*", RegistryApi.set_mode),
)
PATTERNS = [
    (method, re.compile(re.escape(path.rstrip("/")).replace(r"\*", "([^/]+)") + "/?"), answer)
    for method, path, answer in ROUTES
]


def _route(method: str, path: str) -> tuple[Answer, tuple[str, ...]]:
    fitting = [(known, found, answer) for known, pattern, answer in PATTERNS if (found := pattern.fullmatch(path))]
    if not fitting:
        raise _Refused(404, 404, "HTTP 404 Not Found")
    for known, found, answer in fitting:
        if known == method:
            return answer, tuple(map(unquote, found.groups()))
    raise _Refused(405, 405, "HTTP 405 Method Not Allowed")


def _document(body: bytes) -> Mapping[str, Any]:
    if not body:
        return {}
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _Refused(400, 400, "The body is no JSON object.")
    return found


def _schema(body: Mapping[str, Any]) -> tuple[SchemaFormat, str]:
    text, word = body.get("schema"), str(body.get("schemaType") or "AVRO").upper()
    if word not in FORMATS:
        raise _Refused(422, BAD_SCHEMA, f"Invalid schema type; it is one of {', '.join(FORMATS)}")
    if not isinstance(text, str) or not text.strip():
        raise _Refused(422, BAD_SCHEMA, "Empty schema; `schema` holds its text")
    if body.get("references"):
        raise _Refused(422, BAD_SCHEMA, "References are not kept here; write all types into one schema")
    return FORMATS[word], text


def _shown(found: SubjectVersion) -> dict[str, Any]:
    told = {"subject": found.subject, "version": found.version, "id": found.id, "schema": found.text}
    return told if found.format == "avro" else {**told, "schemaType": WORDS[found.format]}


def _upper(words: tuple[str, ...]) -> str:
    return ", ".join(word.upper() for word in words)


# --- the socket ----------------------------------------------------------------------------------


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    timeout = IDLE_SECONDS
    server_version, sys_version = "rivet", ""
    api: ClassVar[RegistryApi]
    authorization: ClassVar[bytes | None]
    tell: ClassVar[Any]  # a static method: takes a line

    def do_GET(self) -> None:
        """Answer a GET."""
        self._serve()

    do_POST = do_PUT = do_DELETE = do_GET

    def log_message(self, format: str, *arguments: Any) -> None:
        """Write nothing; `_serve` tells each request."""

    def _serve(self) -> None:
        told = self.headers.get("Content-Length") or "0"
        length = int(told) if told.isascii() and told.isdigit() else -1
        # The line ends with such a request: its body is still to come, and would be read as the next one.
        if length < 0 or length > MOST_BYTES or self.headers.get("Transfer-Encoding"):
            self.close_connection = True
            return self._send(413, {"error_code": 413, "message": f"A body has a length of at most {MOST_BYTES} bytes"})
        # Read before anybody is refused, for the same reason: the line is used again.
        body = self.rfile.read(length)
        if not self._may():
            return self._send(401, {"error_code": 40101, "message": "Unauthorized"})
        try:
            status, document = self.api.answer(self.command, self.path, body)
        except Exception as error:
            # A fault of ours must not end the server.
            status, document = 500, {"error_code": 50001, "message": f"Internal error ({type(error).__name__})"}
        self._send(status, document)

    def _may(self) -> bool:
        if self.authorization is None:
            return True
        # As long for any text: a plain comparison ends at the first letter that differs, which can be measured.
        return hmac.compare_digest((self.headers.get("Authorization") or "").encode(), self.authorization)

    def _send(self, status: int, document: Any) -> None:
        content = json.dumps(document, ensure_ascii=False).encode()
        self.send_response(status)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(content)))
        if status == 401:
            self.send_header("WWW-Authenticate", 'Basic realm="rivet"')
        self.end_headers()
        self.wfile.write(content)
        self.tell(f"{self.command} {urlsplit(self.path).path} {status}")


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Leave a connection that broke: its client knows."""


@dataclass(frozen=True)
class ServerSettings:
    """Where the server listens, and whom it answers."""

    host: str = "127.0.0.1"
    port: int = 8081
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    certificate: Path | None = None  # PEM, with its chain
    key: Path | None = None


def registry_server(
    registry: EmbeddedSchemaRegistry, settings: ServerSettings, *, tell: Callable[[str], None]
) -> ThreadingHTTPServer:
    """Return a server that listens; `serve_forever` answers, `shutdown` and `server_close` end it.

    Args:
        tell: takes a line for each request: method, path without query, status.

    Raises:
        ConfigError: it cannot listen there, or its certificate cannot be used.
    """
    credentials = f"{settings.username}:{settings.password or ''}".encode()
    expected = b"Basic " + base64.b64encode(credentials) if settings.username is not None else None
    names = {"api": RegistryApi(registry), "authorization": expected, "tell": staticmethod(tell)}
    try:
        server = _Server((settings.host, settings.port), type("_OwnHandler", (_Handler,), names))
    except OSError as error:
        raise ConfigError(
            f"Nothing can listen at {settings.host}:{settings.port}: {error.strerror}. Choose another --port."
        ) from error
    if settings.certificate is not None:
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(settings.certificate, settings.key)
        except (OSError, ssl.SSLError) as error:
            server.server_close()
            raise ConfigError(
                f"{settings.certificate} cannot be used as a certificate. Name PEM files of it and of its key."
            ) from error
        # The handshake belongs to the connection's thread: one that never ends it must hold up nobody else.
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    return server
