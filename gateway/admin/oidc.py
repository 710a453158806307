"""People: from a JWT of the configured OpenID provider to who it is and what they may do.

What is not checked by name is refused: the signature's algorithm is one of a list without HMAC and `none`, and issuer,
audience, subject and times must all be there and right. No message repeats what a token says.
"""

import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jwt

from gateway.admin.jwks import KeySet
from gateway.admin_settings import AdminSection
from policies.roles import EVERYWHERE, Grant, Place
from policies.tenant import Role

MAX_TOKEN_BYTES = 16 * 1024  # chosen: the largest that providers send, with hundreds of groups
MAX_SUBJECT = 255  # OpenID Connect Core, section 2
MAX_ORGANIZATIONS = MAX_PROJECTS = 32  # chosen: grants are looked at for every request
_OF_PROJECTS = frozenset({Role.PROJECT_ADMIN, Role.VIEWER})
_REQUIRED = ["exp", "iss", "aud", "sub"]
_ABSENT = object()  # a claim that is not there; one that says nothing narrows, too


class TokenRefused(Exception):
    """The token opens nothing; the sentence says why, in words fit for whoever sent it."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """Roles in projects that a token names by their ids. Which organisation each is of, only the store knows.

    `organizations`: where they must be, None: anywhere.
    """

    roles: tuple[Role, ...]
    projects: tuple[str, ...]
    organizations: frozenset[str] | None

    def grants_at(self, place: Place) -> tuple[Grant, ...]:
        """What the token gives at one of the projects, once it is known where that is."""
        if self.organizations is not None and place.organization_id not in self.organizations:
            return ()
        return tuple(Grant(role, place) for role in self.roles)


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody the provider vouches for. `subject`: its own name for them, for the audit log.

    `grants`: what holds as it stands; `claimed`: what holds for those of its projects that there are.
    """

    subject: str
    grants: tuple[Grant, ...]
    claimed: Claimed | None = None


class People:
    """Everybody with a token of one provider. `close` lets go of its connections."""

    def __init__(self, section: AdminSection, keys: KeySet) -> None:
        self._section = section
        self._keys = keys

    async def person(self, token: bytes) -> Person:
        """Who has this token. Raises `TokenRefused`, and `IssuerUnreachable` where its key cannot be had."""
        text = _text(token)
        algorithm, kid = self._header(text)
        key = await self._keys.key(kid, algorithm)
        if key is None:
            raise TokenRefused("the token is signed with a key that its provider does not have")
        claims = self._claims(text, key, algorithm)
        subject = claims["sub"]
        if not (isinstance(subject, str) and 0 < len(subject) <= MAX_SUBJECT):
            raise TokenRefused("the token does not say whose it is")
        return Person(subject, grants_of(claims, self._section), claimed_by(claims, self._section))

    async def close(self) -> None:
        """Harmless the second time."""
        await self._keys.close()

    def _header(self, text: str) -> tuple[str, str | None]:
        """(algorithm, key id) as the token claims them, before anything is believed."""
        try:
            header = jwt.get_unverified_header(text)
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
            raise TokenRefused("the token cannot be read") from error
        algorithm, kid = header.get("alg"), header.get("kid")
        if algorithm not in self._section.oidc_algorithms:
            raise TokenRefused("the token is signed with an algorithm that is not allowed here")
        if kid is not None and not isinstance(kid, str):
            raise TokenRefused("the token cannot be read")
        return str(algorithm), kid

    def _claims(self, text: str, key: jwt.PyJWK, algorithm: str) -> dict[str, Any]:
        try:
            return jwt.decode(
                text,
                key,
                algorithms=[algorithm],
                audience=self._section.oidc_audience,
                issuer=self._section.oidc_issuer,
                leeway=self._section.oidc_leeway_s,
                options={"require": _REQUIRED},
            )
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError, OverflowError) as error:
            raise TokenRefused(_reason(error)) from error


@contextlib.asynccontextmanager
async def people_of(section: AdminSection) -> AsyncIterator[People | None]:
    """Everybody of the configured provider, None where there is none. Nothing is asked of it before the first token."""
    if not section.oidc_issuer:
        yield None
        return
    people = People(section, KeySet(section.oidc_issuer))
    try:
        yield people
    finally:
        await people.close()


def is_token(credential: bytes) -> bool:
    """Whether it has the form of a signed JWT; our own keys never do."""
    return credential.count(b".") == 2


def grants_of(claims: Mapping[str, Any], section: AdminSection) -> tuple[Grant, ...]:
    """What the claims give: a platform admin everything, everybody else only in the organisations that are named.

    Where projects are named, too, the roles of a project are not here: they hold for these alone (`claimed_by`).
    """
    roles = _roles(claims, section)
    grants = [Grant(Role.PLATFORM_ADMIN, EVERYWHERE)] if Role.PLATFORM_ADMIN in roles else []
    elsewhere = frozenset() if _claim(claims, section.oidc_project_claim) is _ABSENT else _OF_PROJECTS
    within = _in_order(roles - {Role.PLATFORM_ADMIN, Role.SERVICE} - elsewhere)
    grants += [Grant(role, Place(one)) for one in _organizations(claims, section) for role in within]
    return tuple(grants)


def claimed_by(claims: Mapping[str, Any], section: AdminSection) -> Claimed | None:
    """The projects that are named, and the roles in them; None where none is, or no role that a project has."""
    roles = _in_order(_roles(claims, section) & _OF_PROJECTS)
    projects = tuple(dict.fromkeys(_words(claims, section.oidc_project_claim)))[:MAX_PROJECTS]
    if not (roles and projects):
        return None
    is_anywhere = _claim(claims, section.oidc_organization_claim) is _ABSENT
    organizations = None if is_anywhere else frozenset(_organizations(claims, section))
    return Claimed(roles, projects, organizations)


def _roles(claims: Mapping[str, Any], section: AdminSection) -> frozenset[Role]:
    meaning = section.oidc_roles or {role.value: role for role in Role}
    return frozenset(meaning[word] for word in _words(claims, section.oidc_role_claim) if word in meaning)


def _in_order(roles: Iterable[Role]) -> tuple[Role, ...]:
    return tuple(sorted(roles, key=lambda role: role.value))


def _organizations(claims: Mapping[str, Any], section: AdminSection) -> list[str]:
    return list(dict.fromkeys(_words(claims, section.oidc_organization_claim)))[:MAX_ORGANIZATIONS]


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    """What a claim says, `_ABSENT` if it is not there. A name with dots is one claim, else a path.

    Where a path leads through something that holds no names (a list, null), the claim is there and says nothing.
    """
    if name in claims:
        return claims[name]
    value: Any = claims
    for part in name.split("."):
        if value is _ABSENT:
            return _ABSENT
        value = value.get(part, _ABSENT) if isinstance(value, Mapping) else None
    return value


def _words(claims: Mapping[str, Any], name: str) -> Iterator[str]:
    """The words of a claim: a list's, or a text's between blanks."""
    value = _claim(claims, name)
    words = value.split() if isinstance(value, str) else value if isinstance(value, list) else []
    return (word for word in words if isinstance(word, str) and word)


def _text(token: bytes) -> str:
    if len(token) > MAX_TOKEN_BYTES:
        raise TokenRefused(f"a token has at most {MAX_TOKEN_BYTES} bytes")
    return token.decode("ascii", "replace")


_REASONS: dict[type[Exception], str] = {
    jwt.ExpiredSignatureError: "the token has expired",
    jwt.ImmatureSignatureError: "the token is not valid yet",
    jwt.InvalidAudienceError: "the token is for another audience",
    jwt.InvalidIssuerError: "the token is from another issuer",
    jwt.MissingRequiredClaimError: "the token lacks a claim: exp, iss, aud and sub are needed",
    jwt.InvalidSignatureError: "the token's signature is wrong",
}


def _reason(error: Exception) -> str:
    return next((reason for kind, reason in _REASONS.items() if isinstance(error, kind)), "the token cannot be used")
