"""instructor against a gateway: models as answers, by tools, by schemas, by Anthropic's messages; whole and in parts."""

from typing import Literal

import anthropic
import instructor
import openai
import pytest
from pydantic import BaseModel, ConfigDict, field_validator

modes = pytest.mark.parametrize("mode", [instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA], ids=str)
ASKED = {"messages": [{"role": "user", "content": "Which city?"}], "max_retries": 0}


class City(BaseModel):
    """A city."""

    name: str
    population: int


class Verdict(BaseModel):
    """What even the smallest model can fill in, if nothing more is allowed."""

    model_config = ConfigDict(extra="forbid")
    colour: Literal["red", "green"]
    is_sure: bool


PARIS = {"name": "Paris", "population": 2}


def of(gateway, mode, kind=openai.OpenAI):
    """A client of this mode."""
    return instructor.from_openai(kind(base_url=gateway.url, api_key=gateway.key, max_retries=0), mode=mode)


@modes
def test_a_model_is_the_answer(gateway, mode):
    """With the completion that it came of."""
    client = of(gateway, mode)
    found = client.chat.completions.create(model=gateway.model, response_model=City, **ASKED)
    assert found.model_dump() == PARIS
    found, completion = client.chat.completions.create_with_completion(
        model=gateway.model, response_model=City, **ASKED
    )
    assert (found.model_dump(), completion.usage.prompt_tokens) == (PARIS, 10)


@modes
def test_parts_of_a_model_while_it_comes(gateway, mode):
    """Each fuller than the one before, the last one whole."""
    parts = list(of(gateway, mode).chat.completions.create_partial(model=gateway.model, response_model=City, **ASKED))
    assert len(parts) > 1
    assert (parts[-1].name, parts[-1].population) == ("Paris", 2)


@modes
async def test_the_asynchronous_half(gateway, mode):
    """Whole and in parts."""
    client = of(gateway, mode, openai.AsyncOpenAI)
    found = await client.chat.completions.create(model=gateway.model, response_model=City, **ASKED)
    assert found.model_dump() == PARIS
    parts = [
        part async for part in client.chat.completions.create_partial(model=gateway.model, response_model=City, **ASKED)
    ]
    assert parts[-1].name == "Paris"


def test_what_does_not_validate_is_asked_again(gateway):
    """Its loop sends the call and what was wrong with it as a tool's result, and reads the second answer."""
    tries = []

    class Doubted(BaseModel):
        """A city that is believed at the second time."""

        name: str

        @field_validator("name")
        @classmethod
        def doubt(cls, value):
            """The first is refused."""
            tries.append(value)
            if len(tries) == 1:
                raise ValueError("say it again")
            return value

    client = of(gateway, instructor.Mode.JSON_SCHEMA)
    found = client.chat.completions.create(model=gateway.model, response_model=Doubted, **ASKED | {"max_retries": 2})
    assert (found.name, len(tries)) == ("Paris", 2)


def test_by_anthropics_client(gateway):
    """A tool that must be called."""
    client = instructor.from_anthropic(anthropic.Anthropic(base_url=gateway.root, api_key=gateway.key, max_retries=0))
    found = client.messages.create(model=gateway.model, max_tokens=100, response_model=City, **ASKED)
    assert found.model_dump() == PARIS


@modes
def test_the_demo_model_fills_a_model(demo, mode):
    """The real one: its worker's grammar holds it to the schema in both ways."""
    asked = {"messages": [{"role": "user", "content": "Is grass red or green?"}], "max_retries": 0}
    client = of(demo, mode)
    found = client.chat.completions.create(
        model=demo.model, response_model=Verdict, max_tokens=60, temperature=0, **asked
    )
    assert found.colour in ("red", "green")
