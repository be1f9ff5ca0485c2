"""Who signs in to an Azure container, and by which way: told without a secret.

Belongs here: the order of precedence and what each step answers. Not here: whether the store agrees (`probe.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

from rivet_resources.contracts.evidence import Finding
from rivet_resources.destinations.azure_client import SIGN_IN, AzureLocation, connect, default_chain
from rivet_resources.errors import RivetError
from rivet_resources.secrets import is_set

SCOPE = "https://storage.azure.com/.default"


def findings(location: AzureLocation) -> Iterator[Finding]:
    """Yield who signs in, and to which endpoint."""
    yield _signs_in(location)
    if location.connection_string_env is None:
        yield Finding("endpoint", "ok", location.url)


def _signs_in(location: AzureLocation) -> Finding:
    ways = {
        location.connection_string_env: "a connection string",
        location.account_key_env: "a key of the account",
        location.sas_token_env: "a shared access signature",
    }
    named = next((name for name in ways if name), None)
    if named is None:
        return _by_chain()
    if not is_set(named):
        text = f"the variable {named} is not set or empty, while the config signs in by {ways[named]} in it"
        return Finding("credentials", "fail", text, f"export {named}=…")
    try:
        connect(location)
    except RivetError as error:
        return Finding("credentials", "fail", str(error), "Copy it again from the account's page.")
    return Finding("credentials", "ok", f"{ways[named]} in the variable {named}, set")


def _by_chain() -> Finding:
    """Ask the default chain for a token, and which of its steps answered."""
    from azure.core.exceptions import ClientAuthenticationError  # driver

    chain = default_chain()
    try:
        chain.get_token(SCOPE)
    except ClientAuthenticationError as error:
        text = f"Azure's default chain found no credentials ({type(error).__name__})"
        return Finding("credentials", "fail", text, SIGN_IN)
    step = type(getattr(chain, "_successful_credential", None)).__name__.removesuffix("Credential")
    return Finding("credentials", "ok", f"Azure's default chain: {step}")
