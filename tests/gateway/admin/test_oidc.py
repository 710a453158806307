"""People with a token of an OpenID provider: who comes in, who does not, and what happens when the provider is away."""

import base64
import json
import time

import httpx
import jwt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.admin.app import create_admin_app
from gateway.admin.jwks import COOLDOWN_S, MAX_AGE_S, MAX_DOCUMENT_BYTES, MAX_KEYS, REFRESH_S, KeySet
from gateway.admin.oidc import MAX_TOKEN_BYTES, People, TokenRefused, grants_of, people_of
from gateway.admin_settings import AdminSection
from gateway.settings import ConfigError, load
from policies.roles import EVERYWHERE, Grant, Place
from policies.tenant import Role
from tests.gateway.admin.conftest import TOKEN
from tests.gateway.admin.issuer import AUDIENCE, running_issuer

SECTION = AdminSection(oidc_issuer="https://id.example", oidc_audience=AUDIENCE)


class Clock:
    """Monotonic seconds that stand still until told."""

    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
async def issuer():
    async with running_issuer() as one:
        yield one


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
async def ask(issuer, clock, store, control):
    """Asks GET /organizations with a bearer token: (status, code)."""
    section = AdminSection(
        oidc_issuer=issuer.url, oidc_audience=AUDIENCE, oidc_algorithms=("RS256", "ES256", "EdDSA"), oidc_leeway_s=5
    )
    people = People(section, KeySet(issuer.url, clock=clock))
    transport = httpx.ASGITransport(create_admin_app(store, control, TOKEN, people=people))
    async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:

        async def ask(token):
            answer = await client.get("/admin/v1/organizations", headers={"authorization": f"Bearer {token}"})
            error = answer.json().get("error") or {}
            return answer.status_code, error.get("code")

        yield ask
    await people.close()


def forged(header: dict, claims: dict, signature: bytes = b"") -> str:
    """A token of these parts, whatever they are."""
    parts = (json.dumps(header).encode(), json.dumps(claims).encode(), signature)
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


async def test_a_person_with_a_role_comes_in_and_the_keys_are_fetched_once(ask, issuer):
    """Discovery and keys are asked for at the first token, not at every one."""
    for _ in range(3):
        assert await ask(issuer.token()) == (200, None)
    assert issuer.asked == ["/.well-known/openid-configuration", "/jwks"]


async def test_an_elliptic_key_serves_as_well(ask, issuer):
    """Providers differ in what they sign with."""
    issuer.add_curves()
    assert await ask(issuer.token("curve", "ES256")) == (200, None)
    assert await ask(issuer.token("edwards", "EdDSA")) == (200, None)


async def test_a_token_without_key_id_needs_a_provider_with_one_key(ask, issuer, clock):
    """Guessing among several keys is refused."""
    assert await ask(issuer.token(None)) == (200, None)
    issuer.keys["third"] = issuer.keys["first"]
    clock.now += REFRESH_S
    assert await ask(issuer.token(None)) == (401, "invalid_token")


BAD_CLAIMS = {
    "wrong audience": {"aud": "other"},
    "no audience": {"aud": None},
    "audience that is no text": {"aud": 7},
    "wrong issuer": {"iss": "https://id.example"},
    "issuer with a slash more": {"iss": "slash"},
    "no issuer": {"iss": None},
    "expired": {"exp": int(time.time()) - 60},
    "no end": {"exp": None},
    "end that is no number": {"exp": "soon"},
    "not yet": {"nbf": int(time.time()) + 86_400},
    "made in the future": {"iat": int(time.time()) + 86_400},
    "no subject": {"sub": None},
    "empty subject": {"sub": ""},
    "long subject": {"sub": "x" * 256},
    "subject that is no text": {"sub": 7},
}


@pytest.mark.parametrize("name", BAD_CLAIMS)
async def test_a_token_with_a_wrong_claim_opens_nothing(ask, issuer, name):
    """Issuer, audience, subject and times are all checked, and all must be there."""
    changed = dict(BAD_CLAIMS[name])
    if changed.get("iss") == "slash":
        changed["iss"] = issuer.url + "/"
    try:
        token = issuer.token(**changed)
    except TypeError:  # the library does not sign such a thing
        header = {"alg": "RS256", "kid": "first"}
        token = forged(header, issuer.claims(**changed), b"x" * 256)
    assert await ask(token) == (401, "invalid_token")


async def test_clocks_may_differ_by_the_leeway(ask, issuer):
    """A token that ended three seconds ago by our clock may be good by the provider's."""
    now = int(time.time())
    assert await ask(issuer.token(exp=now - 2, nbf=now + 2)) == (200, None)


async def test_no_algorithm_but_those_of_the_list_is_taken(ask, issuer):
    """`none`, HMAC with the public key as its secret, and a good algorithm that was not chosen."""
    claims = issuer.claims()
    assert await ask(forged({"alg": "none", "kid": "first"}, claims)) == (401, "invalid_token")
    assert await ask(forged({"alg": "NONE", "kid": "first"}, claims)) == (401, "invalid_token")
    assert await ask(issuer.token(algorithm="RS512")) == (401, "invalid_token")
    good = issuer.token()
    import hashlib
    import hmac

    for secret in (issuer.public_pem(), issuer.public_pem().strip(), b""):
        head = forged({"alg": "HS256", "kid": "first", "typ": "JWT"}, claims).rpartition(".")[0]
        signature = hmac.new(secret, head.encode(), hashlib.sha256).digest()
        token = f"{head}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"
        assert await ask(token) == (401, "invalid_token")
    assert await ask(good) == (200, None)


async def test_an_elliptic_signature_does_not_pass_for_an_rsa_key(ask, issuer):
    """The kind of key and the algorithm must fit."""
    issuer.add_curves()
    head = jwt.get_unverified_header(issuer.token("curve", "ES256"))
    assert head["kid"] == "curve"
    assert await ask(issuer.token("curve", "ES256", headers={"kid": "first"})) == (401, "invalid_token")


async def test_a_keys_own_word_on_its_use_and_algorithm_counts(ask, issuer):
    """A key for encryption, or for another algorithm, signs nothing here."""
    [good] = [issuer._jwk("first", issuer.keys["first"])]
    issuer.more_keys = [good | {"kid": "rs512", "alg": "RS512"}, good | {"kid": "enc", "use": "enc"}]
    assert await ask(issuer.token(headers={"kid": "rs512"})) == (401, "invalid_token")
    assert await ask(issuer.token(headers={"kid": "enc"})) == (401, "invalid_token")
    assert await ask(issuer.token()) == (200, None)


async def test_a_changed_token_is_refused(ask, issuer):
    """Whoever edits the claims breaks the signature."""
    head, _, signature = issuer.token(roles=["viewer"]).split(".")
    body = base64.urlsafe_b64encode(json.dumps(issuer.claims()).encode()).rstrip(b"=").decode()
    assert await ask(f"{head}.{body}.{signature}") == (401, "invalid_token")
    assert await ask(f"{head}.{body}.") == (401, "invalid_token")


async def test_a_critical_header_that_is_not_known_is_refused(ask, issuer):
    """RFC 7515: what must be understood and is not, ends it."""
    assert await ask(issuer.token(headers={"crit": ["b64x"], "b64x": False})) == (401, "invalid_token")


async def test_secrets_and_short_keys_among_the_keys_are_passed_over(ask, issuer):
    """A provider's mistake must not open the door."""
    issuer.add_weak()
    issuer.more_keys = [
        {"kty": "oct", "kid": "secret", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA"},
        {"kid": "x"},
    ]
    assert await ask(issuer.token("weak")) == (401, "invalid_token")
    assert await ask(forged({"alg": "RS256", "kid": "secret"}, issuer.claims())) == (401, "invalid_token")
    assert await ask(issuer.token()) == (200, None)


async def test_no_more_keys_are_looked_at_than_the_bound(ask, issuer):
    """A provider with a million keys is no reason to run out of memory or time."""
    good = issuer._jwk("first", issuer.keys["first"])
    issuer.more_keys = [good | {"kid": f"k{number}"} for number in range(1, MAX_KEYS + 1)]
    assert await ask(issuer.token(headers={"kid": f"k{MAX_KEYS - 1}"})) == (200, None)
    assert await ask(issuer.token(headers={"kid": f"k{MAX_KEYS}"})) == (401, "invalid_token")


async def test_a_rotated_key_is_found_and_the_old_one_ends(ask, issuer, clock):
    """An unknown key id is asked for at once; the old key ends when the keys were fetched anew."""
    old = issuer.token()
    assert await ask(old) == (200, None)
    clock.now += COOLDOWN_S
    issuer.rotate()
    assert await ask(issuer.token("second")) == (200, None)
    assert await ask(old) == (401, "invalid_token")


async def test_made_up_key_ids_send_no_flood_to_the_provider(ask, issuer, clock):
    """One question in ten seconds, however many ids are tried."""
    assert await ask(issuer.token()) == (200, None)
    for number in range(20):
        assert await ask(issuer.token(f"kid-{number}")) == (401, "invalid_token")
    assert len(issuer.asked) == 2
    clock.now += COOLDOWN_S
    for number in range(20):
        assert await ask(issuer.token(f"kid-{number}")) == (401, "invalid_token")
    assert len(issuer.asked) == 4


async def test_while_the_provider_is_away_known_keys_go_on_and_others_are_503(ask, issuer, clock):
    """A short outage of the provider is none of ours; what cannot be known is said clearly, with when to come again."""
    assert await ask(issuer.token()) == (200, None)
    issuer.is_down = True
    clock.now += REFRESH_S
    assert await ask(issuer.token()) == (200, None)
    assert await ask(issuer.token("second")) == (503, "issuer_unavailable")
    clock.now += MAX_AGE_S
    assert await ask(issuer.token()) == (503, "issuer_unavailable")
    issuer.is_down = False
    clock.now += COOLDOWN_S
    assert await ask(issuer.token()) == (200, None)


async def test_a_provider_that_was_never_reached_is_503(ask, issuer):
    """Not 401: the caller did nothing wrong."""
    issuer.is_down = True
    assert await ask(issuer.token()) == (503, "issuer_unavailable")


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/.well-known/openid-configuration", b"<html>"),
        ("/.well-known/openid-configuration", b"[" * 100_000),
        (
            "/.well-known/openid-configuration",
            b'{"issuer": "https://other.example", "jwks_uri": "ISSUER/jwks"}',
        ),
        ("/.well-known/openid-configuration", b'{"issuer": "ISSUER", "jwks_uri": "http://169.254.169.254/keys"}'),
        ("/.well-known/openid-configuration", b'{"issuer": "ISSUER", "jwks_uri": "file:///etc/passwd"}'),
        ("/jwks", b'{"keys": 7}'),
        ("/jwks", b" " * (MAX_DOCUMENT_BYTES + 1)),
    ],
)
async def test_a_provider_that_says_nothing_of_use_is_503(ask, issuer, path, content):
    """Another issuer's document, keys on a plain or odd address, no JSON, or too much of it."""
    issuer.documents[path] = content.replace(b"ISSUER", issuer.url.encode())
    assert await ask(issuer.token()) == (503, "issuer_unavailable")


async def test_a_huge_token_is_refused_before_it_is_read(ask, issuer):
    """Neither the provider nor the parser is bothered."""
    assert await ask(issuer.token(padding="x" * MAX_TOKEN_BYTES)) == (401, "invalid_admin_token")
    assert issuer.asked == []
    large = issuer.token(groups=["x" * 100] * 100)
    assert len(large) < MAX_TOKEN_BYTES
    assert await ask(large) == (200, None)


async def test_a_person_without_a_role_is_403_and_told_what_decides(ask, issuer):
    """They are known, and may do nothing: not the same as a wrong token."""
    assert await ask(issuer.token(roles=["reader"])) == (403, "no_role")
    assert await ask(issuer.token(roles=["organization_admin"])) == (403, "no_role")
    assert await ask(issuer.token(roles=["service"], organization="org_1")) == (403, "no_role")


async def test_without_a_provider_a_token_opens_nothing(app, issuer):
    """No issuer is configured by default."""
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
        answer = await client.get("/admin/v1/keys", headers={"authorization": f"Bearer {issuer.token(iat=None)[:500]}"})
    assert answer.status_code == 401
    assert issuer.asked == []


async def test_people_are_made_from_the_settings_and_closed_with_them():
    """None where no issuer is set; a provider's connections end with the supervisor."""
    async with people_of(AdminSection()) as nobody:
        assert nobody is None
    async with people_of(SECTION) as people:
        assert people is not None
    await people.close()


def grants(section=SECTION, **claims):
    return set(grants_of(claims, section))


def test_a_platform_admin_may_everything_and_others_only_in_their_organisations():
    """An organisation that is not named gives nothing."""
    assert grants(roles=["platform_admin"]) == {Grant(Role.PLATFORM_ADMIN, EVERYWHERE)}
    assert grants(roles=["organization_admin"], organization="org_1") == {
        Grant(Role.ORGANIZATION_ADMIN, Place("org_1"))
    }
    assert grants(roles="viewer project_admin", organization=["org_1", "org_2"]) == {
        Grant(role, Place(one)) for role in (Role.VIEWER, Role.PROJECT_ADMIN) for one in ("org_1", "org_2")
    }
    assert grants(roles=["viewer"], organization="") == set()
    assert grants(roles=["viewer"], organization=[None, 7, {}, ""]) == set()
    assert grants(roles={"platform_admin": True}) == set()
    assert len(grants_of({"roles": "viewer", "organization": [f"org_{n}" for n in range(1000)]}, SECTION)) == 32


def test_roles_may_have_other_names_and_lie_in_nested_claims():
    """Providers put roles where they like; with a mapping our own names mean nothing any more."""
    section = SECTION.model_copy(
        update={
            "oidc_role_claim": "realm_access.roles",
            "oidc_organization_claim": "https://acme.example/org",
            "oidc_roles": {"wl-admins": Role.PLATFORM_ADMIN, "wl-auditors": Role.VIEWER},
        }
    )
    claims = {"realm_access": {"roles": ["wl-auditors", "platform_admin"]}, "https://acme.example/org": "org_1"}
    assert set(grants_of(claims, section)) == {Grant(Role.VIEWER, Place("org_1"))}
    assert grants_of({"realm_access": "wl-admins"}, section) == ()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20) | st.sampled_from([role.value for role in Role]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(roles=JSON, organization=JSON)
@settings(max_examples=100, deadline=None)
def test_no_claims_can_break_the_mapping_or_reach_beyond_what_they_name(roles, organization):
    """Whatever a provider puts there: only a platform admin's grant is for everything."""
    for grant in grants(roles=roles, organization=organization):
        assert (grant.place == EVERYWHERE) == (grant.role is Role.PLATFORM_ADMIN)
        assert grant.role is not Role.SERVICE


@given(
    token=st.binary(max_size=200)
    | st.text("abcdefghijklmnopqrstuvwxyzABCDEF0123456789-_=.", max_size=200).map(str.encode)
)
@settings(max_examples=200, deadline=None)
def test_garbage_is_refused_and_never_a_failure(token):
    """A token is the one thing that anybody may send."""
    import asyncio

    people = People(SECTION, KeySet("https://id.example", transport=httpx.MockTransport(lambda _: httpx.Response(500))))
    with pytest.raises(TokenRefused):
        asyncio.run(people.person(token))


def test_deep_and_huge_values_in_a_token_are_refused():
    """JSON that breaks a parser is a bad token, not a 500."""
    import asyncio

    people = People(SECTION, KeySet("https://id.example"))
    for inner in (
        b"[" * 9000,
        b'{"alg": ' + b"9" * 9000 + b"}",
        b'{"alg": "RS256", "kid": ["x"]}',
        b'{"alg": ["RS256"]}',
        b"7",
        b"null",
    ):
        head = base64.urlsafe_b64encode(inner).rstrip(b"=")
        with pytest.raises(TokenRefused):
            asyncio.run(people.person(head + b".e30.e30"))


@pytest.mark.parametrize(
    "text",
    [
        'oidc_issuer = "http://id.example"\noidc_audience = "x"',
        'oidc_issuer = "https://user:pw@id.example"\noidc_audience = "x"',
        'oidc_issuer = "https://id.example?x=1"\noidc_audience = "x"',
        'oidc_issuer = "https://id.example"',
        'oidc_algorithms = ["HS256"]',
        'oidc_algorithms = ["none"]',
        "oidc_algorithms = []",
        'oidc_roles = {admins = "root"}',
        "oidc_leeway_s = 301",
    ],
)
def test_unsafe_settings_are_refused_at_the_start(tmp_path, text):
    """A provider over plain HTTP, without an audience, or with HMAC would be an open door."""
    path = tmp_path / "w.toml"
    path.write_text(f"[admin]\n{text}\n")
    with pytest.raises(ConfigError, match="admin"):
        load(path)


def test_good_settings_are_taken(tmp_path):
    """As docs/admin.md shows them."""
    path = tmp_path / "w.toml"
    path.write_text(
        '[admin]\noidc_issuer = "https://id.example/realms/acme"\noidc_audience = "warmlane"\n'
        'oidc_role_claim = "groups"\noidc_roles = {wl-admins = "platform_admin"}\noidc_algorithms = ["EdDSA"]\n'
    )
    assert load(path).admin.oidc_roles == {"wl-admins": Role.PLATFORM_ADMIN}
