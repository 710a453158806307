"""Secrets, salts, and the one credential in a request's headers."""

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.keys import (
    MAX_CREDENTIAL_BYTES,
    CredentialFault,
    cache_salt,
    digest,
    new_id,
    new_secret,
    new_server_secret,
    read_credential,
)

KEY = b"wl-0123abcd-" + b"A" * 43


def bearer(value: bytes) -> tuple[bytes, bytes]:
    return (b"authorization", value)


def test_a_secret_begins_with_its_keys_id_and_has_256_random_bits():
    """The prefix must be safe to show, so it comes from the id, and the rest must be beyond guessing."""
    key_id = new_id("key")
    secret = new_secret(key_id)
    assert secret.prefix == "wl-" + key_id.removeprefix("key_")[:8]
    assert secret.text.startswith(secret.prefix + "-")
    assert len(secret.text.removeprefix(secret.prefix + "-")) == 43
    assert secret.digest == hashlib.sha256(secret.text.encode()).digest()


def test_two_secrets_of_one_key_differ():
    """A rotation must not give the old secret again."""
    assert new_secret("key_0011223344").text != new_secret("key_0011223344").text


def test_the_repr_of_a_secret_shows_only_its_prefix():
    """A secret that lands in a log by repr must not be usable."""
    secret = new_secret(new_id("key"))
    assert secret.text.removeprefix(secret.prefix)[1:] not in repr(secret)


def test_ids_carry_their_kind_and_do_not_repeat():
    """An id must say what it is of."""
    ids = {new_id("org") for _ in range(100)}
    assert len(ids) == 100
    assert all(one.startswith("org_") for one in ids)


def test_a_cache_salt_is_32_hex_digits_fixed_by_secret_and_project():
    """The salt must be the same on every gateway and after every restart, and valid for every engine."""
    salt = cache_salt(b"s" * 32, "proj_a")
    assert salt == cache_salt(b"s" * 32, "proj_a")
    assert len(salt) == 32
    assert set(salt) <= set("0123456789abcdef")


def test_cache_salts_differ_by_project_and_by_installation():
    """Two tenants, or two installations, must never share cache entries."""
    salts = {cache_salt(secret, of) for secret in (new_server_secret(), new_server_secret()) for of in ("p1", "p2")}
    assert len(salts) == 4


@pytest.mark.parametrize(
    "headers",
    [
        [bearer(b"Bearer " + KEY)],
        [bearer(b"bearer " + KEY)],
        [bearer(b"BEARER   " + KEY)],
        [bearer(b" Bearer " + KEY + b" ")],
        [(b"x-api-key", KEY)],
        [bearer(b"Bearer " + KEY), (b"x-api-key", KEY)],
        [(b"host", b"x"), (b"x-api-key", b" " + KEY), (b"accept", b"*/*")],
    ],
)
def test_a_credential_is_read_from_either_header(headers):
    """OpenAI's and Anthropic's clients send the key in different headers, some in both."""
    assert read_credential(headers) == KEY


@pytest.mark.parametrize(
    ("headers", "fault"),
    [
        ([], CredentialFault.MISSING),
        ([(b"host", b"x"), (b"cookie", KEY)], CredentialFault.MISSING),
        ([bearer(b"Bearer " + KEY), bearer(b"Bearer " + KEY)], CredentialFault.AMBIGUOUS),
        ([(b"x-api-key", KEY), (b"x-api-key", KEY)], CredentialFault.AMBIGUOUS),
        ([bearer(b"Bearer " + KEY), (b"x-api-key", KEY + b"x")], CredentialFault.AMBIGUOUS),
        ([bearer(b"Basic " + KEY)], CredentialFault.MALFORMED),
        ([bearer(KEY)], CredentialFault.MALFORMED),
        ([bearer(b"")], CredentialFault.MALFORMED),
        ([bearer(b"Bearer")], CredentialFault.MALFORMED),
        ([bearer(b"Bearer ")], CredentialFault.MALFORMED),
        ([bearer(b"Bearer " + KEY + b" " + KEY)], CredentialFault.MALFORMED),
        ([bearer(b"Bearer " + KEY + b"\n")], CredentialFault.MALFORMED),
        ([bearer(b"Bearer " + KEY + b"\x00")], CredentialFault.MALFORMED),
        ([bearer(b"Bearer caf\xc3\xa9")], CredentialFault.MALFORMED),
        ([(b"x-api-key", b"")], CredentialFault.MALFORMED),
        ([bearer(b"Bearer " + KEY), (b"x-api-key", b"")], CredentialFault.MALFORMED),
        ([(b"x-api-key", b"a" * (MAX_CREDENTIAL_BYTES + 1))], CredentialFault.MALFORMED),
        ([bearer(b"Bearer " + b"a" * 10_000)], CredentialFault.MALFORMED),
    ],
)
def test_what_is_not_one_plain_credential_is_refused(headers, fault):
    """P41: repeated headers, other schemes, long values and control characters must never reach a look-up."""
    assert read_credential(headers) is fault


def test_the_longest_credential_is_read():
    """The bound is 512 bytes, not 511."""
    longest = b"a" * MAX_CREDENTIAL_BYTES
    assert read_credential([(b"x-api-key", longest)]) == longest


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.tuples(st.sampled_from([b"authorization", b"x-api-key", b"other"]), st.binary(max_size=40)), max_size=4)
)
def test_any_headers_give_a_plain_credential_or_a_fault(headers):
    """Whatever a client sends, reading it ends with a value, never with an exception."""
    found = read_credential(headers)
    if isinstance(found, bytes):
        assert 0 < len(found) <= MAX_CREDENTIAL_BYTES
        assert all(0x21 <= byte <= 0x7E for byte in found)
        assert len(digest(found)) == 32
