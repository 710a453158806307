"""The `llm` command against a gateway, as its documentation says to name a model of one's own."""

import json
import os
import subprocess
import sys

import pytest

MODELS = """
- model_id: chat
  model_name: {model}
  api_base: {url}
  api_key_name: warmlane
  supports_tools: true
  supports_schema: true
  vision: true
- model_id: whole
  model_name: {model}
  api_base: {url}
  api_key_name: warmlane
  can_stream: false
- model_id: old
  model_name: {model}
  api_base: {url}
  api_key_name: warmlane
  completion: true
- model_id: responses
  model_name: {model}
  api_base: {url}
  api_key_name: warmlane
  responses: true
  supports_tools: true
  supports_schema: true
"""
WEATHER = 'def weather(city: str) -> str:\n    "Of a city."\n    return "sunny"\n'


@pytest.fixture
def llm(gateway, tmp_path):
    """Runs it: what it says."""
    return command(gateway, tmp_path)


def command(gateway, home):
    """The `llm` of this home, which knows the gateway's models and key."""
    (home / "extra-openai-models.yaml").write_text(MODELS.format(url=gateway.url, model=gateway.model))
    (home / "keys.json").write_text(json.dumps({"warmlane": gateway.key, "openai": gateway.key}))
    environment = os.environ | {"LLM_USER_PATH": str(home), "OPENAI_BASE_URL": gateway.url}

    def run(*words, fails=False):
        done = subprocess.run(
            [sys.executable, "-m", "llm", *words],
            check=False,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode != 0) == fails, done.stderr
        return done.stderr if fails else done.stdout

    return run


@pytest.mark.parametrize("model", ["chat", "whole", "old", "responses"])
def test_a_prompt(llm, model):
    """Streamed, whole, by completions, by responses."""
    assert llm("-m", model, "Hello").strip() == "Hello world"


def test_a_conversation_and_its_log(llm):
    """Goes on from the last prompt; the log has the tokens."""
    llm("-m", "chat", "-s", "Be brief.", "Hello")
    assert llm("-c", "And now?").strip() == "Hello world"
    logged = json.loads(llm("logs", "--json"))
    assert [(one["prompt"], one["response"], one["input_tokens"]) for one in logged] == [
        ("Hello", "Hello world", 10),
        ("And now?", "Hello world", 10),
    ]


@pytest.mark.parametrize("model", ["chat", "responses"])
def test_a_schema(llm, model):
    """What is printed is the object."""
    assert json.loads(llm("-m", model, "--schema", "name, population int", "Which city?")) == {
        "name": "Paris",
        "population": 2,
    }


@pytest.mark.parametrize("model", ["chat", "responses"])
def test_a_tool(llm, model):
    """A function of the caller's, called and answered."""
    assert llm("-m", model, "--functions", WEATHER, "weather in Paris?").strip() == "It is sunny."


def test_vectors(llm):
    """Of OpenAI's embedding model, which here is an alias."""
    assert json.loads(llm("embed", "-m", "3-small", "-c", "abc")) == [3.0, 0.5, -0.25]


def test_a_refusal_is_told(llm):
    """With the engine's words."""
    assert "scripted 400" in llm("-m", "chat", "wrong", fails=True)


def test_the_demo_model(demo, tmp_path):
    """The real one."""
    said = command(demo, tmp_path)(
        "-m", "chat", "-o", "temperature", "0", "What is the capital city of France? Answer in one sentence."
    )
    assert "Paris" in said
