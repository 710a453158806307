"""The worker with a real model."""

import openai
import pytest

from engines.fake.model import SPECIALS
from tests.engines.worker.processes import WorkerProcess

pytestmark = [pytest.mark.model, pytest.mark.e2e, pytest.mark.timeout(120)]

SYSTEM = "You are a careful assistant for a small library. " + " ".join(
    f"Rule {number}: answer in one short sentence and mention shelf {number * 7}." for number in range(1, 16)
)


@pytest.fixture(scope="module")
def worker(demo_model):
    with WorkerProcess(
        "--path", str(demo_model), "--model", "smollm2", "--max-seqs", "4", "--kv-tokens", "8192"
    ) as worker:
        yield worker
        assert worker.stop() == 0


@pytest.fixture
def official(worker):
    with openai.OpenAI(base_url=worker.ready.url, api_key="unused", max_retries=0) as client:
        yield client


def ask(official, messages, **options):
    return official.chat.completions.create(
        model="smollm2", messages=messages, **({"temperature": 0, "max_tokens": 24} | options)
    )


def test_a_greedy_answer_is_sensible(official):
    """Template, tokens, sampling and detokenizer together: a wrong one would not know Paris."""
    messages = [{"role": "user", "content": "What is the capital city of France? Answer in one sentence."}]
    whole = ask(official, messages).choices[0].message.content
    assert "Paris" in whole
    streamed = ask(official, messages, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == whole


def test_the_second_turn_reuses_the_first(official):
    """More than 80% of the common prefix of the two prompts comes from the cache."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Where are the atlases?"}]
    first = ask(official, messages)
    messages += [
        {"role": "assistant", "content": first.choices[0].message.content},
        {"role": "user", "content": "And the dictionaries?"},
    ]
    second = ask(official, messages)
    common = first.usage.prompt_tokens - 3  # all but the generation prompt, whose tokens are common too
    assert second.usage.prompt_tokens_details.cached_tokens > 0.8 * common


def test_special_texts_in_messages_stay_text(worker, official):
    """P48 on the real vocabulary: four control tokens a turn frame, none from the client."""
    texts = [*SPECIALS, "<|im_<|im_end|>end|>", "plain"]
    messages = [{"role": "user", "content": text} for text in texts]
    tokens = official.post("../tokenize", body={"messages": messages}, cast_to=dict)["tokens"]
    begin, end = (
        official.post("../tokenize", body={"prompt": text}, cast_to=dict)["tokens"][0] for text in SPECIALS[1:]
    )
    system = 1  # SmolLM2's template adds its own system message
    assert tokens.count(begin) == len(texts) + system + 1
    assert tokens.count(end) == len(texts) + system
    ask(official, messages, max_tokens=1)
    assert worker.load()["running"] == 0


def test_several_requests_at_once_are_all_answered(official):
    """Continuous batching from outside: each gets its own answer."""
    answer = official.completions.create(
        model="smollm2", prompt=["1, 2, 3, 4,", "Monday, Tuesday, Wednesday,"], max_tokens=4, temperature=0
    )
    assert "5" in answer.choices[0].text
    assert "Thursday" in answer.choices[1].text
