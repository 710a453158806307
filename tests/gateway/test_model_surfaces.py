"""Which surfaces a model is served on, and what is told whoever asks it for another one."""

from gateway.model_surfaces import MAX_NAMED, ModelSurfaces

CHAT, EMBED, TOKENIZE = "/v1/chat/completions", "/v1/embeddings", "/v1/tokenize of messages"


def served(*replicas):
    """A table of these: (model, surfaces, tasks, longest input)."""
    table = ModelSurfaces()
    table.replace(
        (model, frozenset(found), None if tasks is None else frozenset(tasks), longest)
        for model, found, tasks, longest in replicas
    )
    return table


MIXED = (
    ("m", {CHAT}, {"generate"}, 4096),
    ("m", {CHAT, EMBED}, {"generate", "embed"}, 512),
    ("v", {EMBED}, None, None),
)


def test_a_replica_is_chosen_by_what_is_needed_only_where_not_all_serve_it():
    """So that a fleet of equals pays nothing for it; of a model without replicas nothing is known."""
    table = served(*MIXED)
    assert table.needs("m", CHAT) == ""
    assert table.needs("m", EMBED) == EMBED
    assert table.needs("v", EMBED) == ""
    assert table.needs("v", CHAT) is None
    assert table.needs("none", CHAT) == ""


def test_facts_are_those_that_somebody_told():
    """Tasks of any replica, and the longest input that all of them take."""
    table = served(*MIXED)
    assert (table.tasks("m"), table.context_tokens("m")) == (("embed", "generate"), 512)
    assert (table.tasks("v"), table.context_tokens("v")) == (None, None)
    assert (table.tasks("none"), table.of("none")) == (None, frozenset())
    table.replace(())
    assert (table.tasks("m"), table.needs("m", EMBED)) == (None, "")


def test_a_refusal_names_the_model_what_it_serves_and_who_serves_the_other():
    """Of those that the caller may know of, and only where somebody said so."""
    table = served(
        ("chat", {CHAT, TOKENIZE}, {"generate"}, None), ("bge", {EMBED}, {"embed"}, None), ("x", {EMBED}, None, None)
    )
    problem = table.refusal("alias", "chat", EMBED, ["bge", "chat", "x"]).problem
    assert (problem.status, problem.code, problem.param) == (400, "unsupported_model", "model")
    assert problem.message == (
        "the model 'alias' does not serve /v1/embeddings: it serves /v1/chat/completions; 'bge' does"
    )
    assert table.refusal("alias", "chat", EMBED, []).problem.message.endswith("it serves /v1/chat/completions")


def test_a_refusal_has_bounds():
    """However many models there are, and however long a name was asked for."""
    many = [(f"e{number}", {EMBED}, {"embed"}, None) for number in range(50)]
    table = served(("none", set(), set(), None), *many)
    message = table.refusal("n" * 1000, "none", EMBED, [f"e{number}" for number in range(50)]).problem.message
    assert f"'e{MAX_NAMED - 1}' and {50 - MAX_NAMED} more do" in message
    assert "nothing that this gateway has" in message
    assert len(message) < 500
