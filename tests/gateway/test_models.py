"""Which model a name means, and who may use it under which name."""

import pytest

from gateway.errors import ClientError
from gateway.model_settings import ModelSection
from gateway.model_surfaces import ModelSurfaces
from gateway.models import ModelTable, ServedModel
from gateway.outcome import Outcome
from policies.tenant import Limits, Tenant

SECTIONS = (
    ModelSection(name="small-a", aliases=("fast", "default"), context_tokens=4096),
    ModelSection(name="small-b"),
)


def table(*served, sections=SECTIONS):
    """A table with two configured models; `served`: what replicas serve besides."""
    return ModelTable(sections, lambda: frozenset(served))


def tenant(*models):
    """A project that may use these, None for all."""
    return Tenant("proj", "org", "0" * 32, Limits(models=None if models == (None,) else frozenset(models)))


EVERYTHING = tenant(None)


@pytest.mark.parametrize(
    ("asked", "name"),
    [("small-a", "small-a"), ("fast", "small-a"), ("default", "small-a"), ("small-b", "small-b"), ("served", "served")],
)
def test_a_name_or_alias_becomes_the_real_name(asked, name):
    """P21: only the real name is used from here on."""
    assert table("served").resolve(asked, EVERYTHING) == name


@pytest.mark.parametrize("asked", ["", "FAST", "small-c", "small-a ", "x" * 10_000])
def test_an_unknown_name_is_404(asked):
    """With a sentence of bounded length."""
    with pytest.raises(ClientError) as caught:
        table().resolve(asked, EVERYTHING)
    problem = caught.value.problem
    assert (problem.status, problem.code, problem.param) == (404, "model_not_found", "model")
    assert len(problem.message) < 300


@pytest.mark.parametrize(
    ("allowed", "asked", "may"),
    [
        (["small-a"], "small-a", True),
        (["small-a"], "fast", True),
        (["fast"], "fast", True),
        (["fast"], "small-a", True),
        (["fast"], "default", True),
        (["fast"], "small-b", False),
        (["small-b"], "fast", False),
        (["served"], "served", True),
        (["small-a"], "served", False),
        ([], "small-a", False),
    ],
)
def test_a_permission_holds_for_the_model_under_every_name(allowed, asked, may):
    """Allowing an alias allows what it means, and nothing else."""
    project = tenant(*allowed)
    if may:
        assert table("served").resolve(asked, project)
        return
    with pytest.raises(ClientError) as caught:
        table("served").resolve(asked, project)
    problem = caught.value.problem
    assert (problem.status, problem.code, problem.outcome) == (403, "model_not_allowed", Outcome.FORBIDDEN)


def test_a_tenant_sees_what_it_may_use():
    """Sorted, with what is known of each."""
    assert table("served").visible(EVERYTHING) == [
        ServedModel("served"),
        ServedModel("small-a", ("fast", "default"), 4096),
        ServedModel("small-b"),
    ]
    assert [model.name for model in table("served").visible(tenant("fast", "served", "nothing"))] == [
        "served",
        "small-a",
    ]
    assert table("served").visible(tenant()) == []


def test_what_the_configuration_leaves_open_is_as_the_engines_say():
    """Its own context holds; what a model does only its engines know."""
    facts = ModelSurfaces()
    told = {"small-a": (frozenset({"generate"}), 512), "small-b": (frozenset({"score", "embed"}), 64)}
    facts.replace((name, frozenset(), tasks, longest) for name, (tasks, longest) in told.items())
    models = ModelTable(SECTIONS, frozenset, facts)
    assert models.visible(EVERYTHING) == [
        ServedModel("small-a", ("fast", "default"), 4096, ("generate",)),
        ServedModel("small-b", (), 64, ("embed", "score")),
    ]


def test_what_replicas_serve_is_asked_anew_each_time():
    """A worker may come or go."""
    served = set()
    models = ModelTable((), lambda: frozenset(served))
    assert models.names() == frozenset()
    served.add("m")
    assert models.resolve("m", EVERYTHING) == "m"
    served.clear()
    with pytest.raises(ClientError):
        models.resolve("m", EVERYTHING)


def test_an_alias_hides_a_served_model_of_the_same_name():
    """The operator's word holds over what an engine happens to be called."""
    assert table("fast").resolve("fast", EVERYTHING) == "small-a"
