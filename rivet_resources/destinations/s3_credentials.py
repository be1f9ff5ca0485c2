"""Who signs in to an S3 bucket, and by which way: told without a secret.

Belongs here: the order of precedence and what each step answers. Not here: whether the store agrees (`probe.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from rivet_resources.contracts.evidence import Finding
from rivet_resources.destinations.s3_client import S3Location, connect
from rivet_resources.errors import ConfigError, RivetError
from rivet_resources.secrets import read_variable

# What botocore calls the provider that answered → what people call it. Source: botocore `credentials.py`, METHOD.
METHODS = {
    "env": "the variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "shared-credentials-file": "the file ~/.aws/credentials",
    "config-file": "the file ~/.aws/config",
    "assume-role": "a role assumed by ~/.aws/config",
    "assume-role-with-web-identity": "a web identity token (EKS, OIDC)",
    "sso": "AWS IAM Identity Center",
    "custom-process": "the credential_process of ~/.aws/config",
    "container-role": "the role of this container (ECS, EKS Pod Identity)",
    "iam-role": "the role of this machine (EC2)",
    "boto-config": "a boto configuration file",
}
NONE = "Set access_key_env and secret_key_env, or aws_profile, or give the machine a role."


def findings(location: S3Location) -> Iterator[Finding]:
    """Yield who signs in, and to which endpoint and region."""
    yield _signs_in(location)
    yield _where(location)


def _signs_in(location: S3Location) -> Finding:
    if location.is_anonymous:
        return Finding("credentials", "ok", "anonymous, as configured (allow_anonymous)")
    named = [name for name in (location.access_key_env, location.secret_key_env, location.session_token_env) if name]
    if named:
        try:
            unset = [name for name in named if not read_variable(name)]
        except RivetError as error:  # of a store of `secrets:`
            return Finding("credentials", "fail", str(error), "Fix `secrets` of the config.")
        if unset:
            text = f"the variable {unset[0]} is not set or empty, while the config signs in by {' and '.join(named)}"
            return Finding("credentials", "fail", text, f"export {unset[0]}=…")
        return Finding("credentials", "ok", f"the variables {' and '.join(named)}, set")
    return _by_chain(location)


def _by_chain(location: S3Location) -> Finding:
    """Ask the default chain which of its providers answers."""
    import boto3  # driver
    from botocore import exceptions  # driver

    try:
        found: Any = boto3.session.Session(profile_name=location.profile).get_credentials()
    except exceptions.PartialCredentialsError as error:
        text = f"half of a pair is set: {error}"
        return Finding("credentials", "fail", text, "Set both of the pair, or neither.")
    except exceptions.ProfileNotFound:
        fix = f"aws configure --profile {location.profile}"
        return Finding("credentials", "fail", f"there is no profile {location.profile} in ~/.aws", fix)
    except exceptions.BotoCoreError as error:  # an expired login, a token file that is gone
        return Finding("credentials", "fail", f"the default chain gave up ({type(error).__name__})", NONE)
    if found is None:
        return Finding("credentials", "fail", "the default chain found no credentials", NONE)
    way = METHODS.get(found.method, found.method)
    profile = f", profile {location.profile}" if location.profile else ""
    # Only those that renew themselves have one.
    expires = getattr(found, "_expiry_time", None)
    if expires is not None and expires < datetime.now(UTC):
        return Finding(
            "credentials", "fail", f"{way}{profile}: expired at {expires:%Y-%m-%d %H:%M} UTC", "Sign in again."
        )
    until = f", valid until {expires:%Y-%m-%d %H:%M} UTC" if expires is not None else ""
    return Finding("credentials", "ok", f"the default chain: {way}{profile}{until}")


def _where(location: S3Location) -> Finding:
    """Return the endpoint and region that requests really go to."""
    from botocore.exceptions import BotoCoreError  # driver

    try:
        client = connect(location)
    except (ConfigError, BotoCoreError):  # told by the row of the credentials
        return Finding("endpoint", "ok", location.endpoint or "Amazon S3, region as the credentials say")
    text = f"{client.meta.endpoint_url}, region {client.meta.region_name}"
    if location.region is None and location.endpoint is None and not _read_region(location):
        fix = f"region: {client.meta.region_name}  -- or the bucket's own, in `destination`"
        return Finding("endpoint", "warn", f"{text}, which nobody named", fix)
    return Finding("endpoint", "ok", text)


def _read_region(location: S3Location) -> str | None:
    import boto3  # driver

    region: str | None = boto3.session.Session(profile_name=location.profile).region_name
    return region
