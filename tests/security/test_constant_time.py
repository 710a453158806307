"""Secrets are compared by their hashes, or in constant time: how much of a guess is right cannot be timed (P41)."""

import ast
import hmac
from pathlib import Path

import pytest

from gateway.admin import access
from gateway.admin import app as admin_app
from policies.keys import digest, new_secret, read_credential

ROOT = Path(admin_app.__file__).parents[2]
SECRET_WORDS = ("token", "secret", "credential", "digest", "signature", "password", "hmac", "mac", "api_key")
PACKAGES = ("gateway", "policies", "engines", "routing", "observability", "cache_affinity")
# Comparisons with such a name that hold no secret of ours, by (file, text), and why.
HARMLESS = {
    (
        "gateway/admin/app.py",
        "read_credential([(b'x-api-key', admin_token.encode())]) != admin_token.encode()",
    ),  # start
    ("gateway/bootstrap.py", "one.digest == hashed"),  # at the start, of a key in a file of ours
    ("policies/redis_transactions.py", "secret != self._secret"),  # what Redis holds, which has the secret anyway
    # Ids of a model's tokens.
    ("engines/core/decoding.py", "sampled[-1].token != row.drafts[index]"),
    ("engines/worker/composed_grammars.py", "token == self._tokens.begin"),
    ("engines/worker/composed_grammars.py", "token == self._tokens.end"),
    ("gateway/doctor.py", "digest != DEMO_PACKAGE.model_sha256"),  # of a public file
}


def comparisons(path):
    """Every `==`, `!=` in the file one side of which has a secret's name and no side of which is a constant."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Compare) or not any(isinstance(op, ast.Eq | ast.NotEq) for op in node.ops):
            continue
        sides = [node.left, *node.comparators]
        if any(isinstance(side, ast.Constant) for side in sides):
            continue
        names = [name for name in map(_last_name, sides) if not name.lower().endswith("per_token")]  # of a model's text
        if any(name == word or name.endswith("_" + word) for name in names for word in SECRET_WORDS):
            yield ast.unparse(node)


def _last_name(node):
    while isinstance(node, ast.Call):
        node = node.func.value if isinstance(node.func, ast.Attribute) and node.func.attr == "encode" else node.func
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def test_no_secret_is_compared_letter_by_letter():
    """Read in the source, because a timing test that is steady enough would take minutes."""
    found = {
        (str(path.relative_to(ROOT)), text)
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for text in comparisons(path)
    }
    unexplained = {one for one in found - HARMLESS if "sha256" not in one[1]}
    assert unexplained == set()


@pytest.mark.parametrize("name", ["token", "server_secret", "key.digest", "x.encode()"])
def test_the_reader_of_the_source_finds_such_a_comparison(tmp_path, name):
    """The other half; what is compared with a constant, or has another name, is no find."""
    file = tmp_path / "x.py"
    file.write_text(f"if {name} == given: pass\nif count == other: pass\nif kind == 'token': pass\n")
    assert list(comparisons(file)) == ([] if name == "x.encode()" else [f"{name} == given"])


def test_a_key_is_looked_up_by_its_hash_alone():
    """Two guesses that share all but the last letter have nothing in common where they are looked up."""
    secret = new_secret("key_0123456789").text
    other = secret[:-1] + ("A" if secret[-1] != "A" else "B")
    one, two = (digest(read_credential([(b"x-api-key", text.encode())])) for text in (secret, other))
    same = sum(a == b for a, b in zip(one, two, strict=True))
    assert len(one) == 32
    assert same < 16


async def test_the_admin_token_is_compared_in_constant_time(monkeypatch):
    """By `hmac.compare_digest` of two hashes, so that not even its length shows."""
    compared = []

    def spy(one, two):
        compared.append((len(one), len(two)))
        return hmac.compare_digest(one, two)

    fake = type("Hmac", (), {"compare_digest": staticmethod(spy)})
    monkeypatch.setattr(access, "hmac", fake)
    passed = []

    async def inner(scope, receive, send):
        passed.append(scope["path"])

    async def send(_message):
        pass

    guarded = admin_app.CallerRequired(inner, access.Door(None, "right-token"))
    for token in (b"right-token", b"right-tokeX", b"x", b"right-token-and-more"):
        headers = [(b"authorization", b"Bearer " + token)]
        scope = {"type": "http", "path": "/admin/v1/keys", "method": "GET", "headers": headers}
        await guarded(scope, None, send)
    assert compared == [(32, 32)] * 4
    assert passed == ["/admin/v1/keys"]
