"""Who signs in to a Google Cloud Storage bucket, and by which way: told without a secret.

Belongs here: the order of precedence and what each step answers. Not here: whether the store agrees (`probe.py`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from rivet_resources.contracts.evidence import Finding
from rivet_resources.destinations.gcs_client import GcsLocation

VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"
EMULATOR = "STORAGE_EMULATOR_HOST"
PUBLIC = "https://storage.googleapis.com"
SIGN_IN = "gcloud auth application-default login"


def findings(location: GcsLocation) -> Iterator[Finding]:
    """Yield who signs in, and to which endpoint; no request is sent but to the machine's own metadata."""
    yield _signs_in(location)
    endpoint = location.endpoint or os.environ.get(EMULATOR)
    from_variable = f" ({EMULATOR})" if endpoint and not location.endpoint else ""
    yield Finding("endpoint", "ok", f"{endpoint or PUBLIC}{from_variable}")


def _signs_in(location: GcsLocation) -> Finding:
    if location.is_anonymous:
        return Finding("credentials", "ok", "anonymous, as configured (allow_anonymous)")
    if location.credentials_file is not None:
        return _of_file(location.credentials_file, said="credentials_file")
    named = os.environ.get(VARIABLE)
    if named:
        return _of_file(Path(named), said=f"the variable {VARIABLE}")
    return _by_default()


def _of_file(path: Path, *, said: str) -> Finding:
    """Read who a key file is for; its key is not looked at."""
    try:
        content = json.loads(path.read_text())
        kind, who = str(content["type"]), content.get("client_email", "")
    except (OSError, ValueError, KeyError, TypeError) as error:
        text = f"{path} (from {said}) is no Google key file ({type(error).__name__})"
        return Finding("credentials", "fail", text, "Download the service account's JSON key again.")
    return Finding("credentials", "ok", f"{said}: {kind.replace('_', ' ')} {who}".rstrip() + f", in {path}")


def _by_default() -> Finding:
    """Ask for application default credentials."""
    import google.auth  # driver
    from google.auth import exceptions  # driver

    try:
        found, project = google.auth.default()
    except exceptions.DefaultCredentialsError:
        text = f"no application default credentials: {VARIABLE} is not set, gcloud has none, this is no Google machine"
        return Finding("credentials", "fail", text, SIGN_IN)
    except exceptions.GoogleAuthError as error:
        return Finding(
            "credentials", "fail", f"application default credentials gave up ({type(error).__name__})", SIGN_IN
        )
    where = {"google.oauth2.credentials": "a user's, from gcloud", "google.auth.compute_engine": "this machine's"}
    kind = type(found).__module__
    way = next((text for module, text in where.items() if kind.startswith(module)), kind.rpartition(".")[2])
    of_project = f", project {project}" if project else ""
    return Finding("credentials", "ok", f"application default credentials: {way}{of_project}")
