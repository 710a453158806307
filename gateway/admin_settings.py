"""The sections of the configuration about people: who may come in on the admin plane, and who is told of budgets."""

import re
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, Field, model_validator

from policies.audit import AuditKeep
from policies.tenant import Role

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_URL = re.compile(r"https?://[^/?#\s@]+(/[^?#\s]*)?")


def _safe_url(url: str) -> str:
    """Empty, or https; plain http only to this machine, where nobody listens in."""
    if not url:
        return url
    if not _URL.fullmatch(url) or (url.startswith("http://") and urlsplit(url).hostname not in _LOOPBACK):
        raise ValueError("give an https:// URL without user and query (http:// only for this machine)")
    return url


SafeUrl = Annotated[str, AfterValidator(_safe_url)]
ClaimName = Annotated[str, Field(min_length=1, max_length=256)]
# Asymmetric ones only: with HS256 whoever knows the public key could sign.
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]


class AdminSection(BaseModel, extra="forbid", frozen=True):
    """Who else than the admin token may come in on the admin plane: people with a token of your OpenID provider.

    `oidc_issuer`: exactly as in its tokens; empty: no people. `oidc_audience`: what its tokens must be for.
    `oidc_role_claim`, `oidc_organization_claim`, `oidc_project_claim`: where a token says the role and the ids of
    organisations and projects, nested names with dots. A token that names projects makes its owner `project_admin` or
    `viewer` of these alone, else of all in the organisations. `oidc_roles`: what the role claim may say and the role
    it means; empty: the roles by their own names.
    `oidc_leeway_s`: how far the clocks may differ. `audit_days`, `audit_entries`: what the audit log keeps.
    """

    oidc_issuer: SafeUrl = ""
    oidc_audience: str = ""
    oidc_role_claim: ClaimName = "roles"
    oidc_organization_claim: ClaimName = "organization"
    oidc_project_claim: ClaimName = "project"
    oidc_roles: dict[str, Role] = {}
    oidc_algorithms: Annotated[tuple[Algorithm, ...], Field(min_length=1)] = ("RS256", "ES256")
    oidc_leeway_s: Annotated[float, Field(ge=0, le=300, allow_inf_nan=False)] = 30
    audit_days: Annotated[int, Field(ge=1, le=3650)] = 400
    audit_entries: Annotated[int, Field(ge=1, le=10_000_000)] = 100_000

    @model_validator(mode="after")
    def _an_issuer_has_an_audience(self) -> Self:
        # Without it a token that the same people got for another application would open this one.
        if self.oidc_issuer and not self.oidc_audience:
            raise ValueError("oidc_issuer needs oidc_audience: what the tokens must be for")
        return self


class AlertsSection(BaseModel, extra="forbid", frozen=True):
    """Who is told when a budget (`tokens_per_day`, `usd_per_month`) is used to 50, 80 and 100 percent.

    `webhook_url`: gets a POST, signed as Standard Webhooks have it; empty: nobody. `webhook_secret_env`: the
    environment variable with its secret (`whsec_` and base64, or text).
    """

    webhook_url: SafeUrl = ""
    webhook_secret_env: str = ""

    @model_validator(mode="after")
    def _a_message_is_signed(self) -> Self:
        if self.webhook_url and not self.webhook_secret_env:
            raise ValueError("webhook_url needs webhook_secret_env: the variable with the secret that signs")
        return self


def audit_keep(section: AdminSection) -> AuditKeep:
    """How long and how many entries the audit log keeps."""
    return AuditKeep(section.audit_days, section.audit_entries)
