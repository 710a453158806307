// OpenAI's client for Node against a gateway. WARMLANE_URL, WARMLANE_KEY and WARMLANE_MODEL say which; see ../serve.py.
import assert from "node:assert/strict";
import { test } from "node:test";

import OpenAI, { APIError, APIUserAbortError, AuthenticationError, BadRequestError, NotFoundError, RateLimitError } from "openai";
import { zodFunction, zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const { WARMLANE_URL: baseURL, WARMLANE_KEY: apiKey, WARMLANE_MODEL: model } = process.env;
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const said = (content) => [{ role: "user", content }];
const City = z.object({ name: z.string(), population: z.number() });
const PARIS = { name: "Paris", population: 2 };

async function collect(stream) {
  const found = [];
  for await (const one of stream) found.push(one);
  return found;
}

test("a chat, whole, with the headers of its answer", async () => {
  const { data, response, request_id } = await client.chat.completions.create({ model, messages: said("Hello") }).withResponse();
  assert.equal(data.choices[0].message.content, "Hello world");
  assert.equal(data.usage.total_tokens, 12);
  assert.equal(response.headers.get("x-request-id"), request_id);
  assert.equal(data._request_id, request_id);
});

test("a chat, streamed, with its usage last", async () => {
  const body = { model, messages: said("Hello"), stream: true, stream_options: { include_usage: true } };
  const chunks = await collect(await client.chat.completions.create(body));
  assert.equal(chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join(""), "Hello world");
  assert.equal(chunks.at(-1).usage.total_tokens, 12);
});

test("the stream's helper", async () => {
  const stream = client.chat.completions.stream({ model, messages: said("Hello") });
  const deltas = [];
  stream.on("content", (delta) => deltas.push(delta));
  const final = await stream.finalChatCompletion();
  assert.equal(final.choices[0].message.content, "Hello world");
  assert.equal(deltas.join(""), "Hello world");
});

for (const stream of [false, true]) {
  test(`tools that the client runs, ${stream ? "streamed" : "whole"}`, async () => {
    const asked = [];
    const tool = {
      type: "function",
      function: {
        name: "weather",
        parameters: { type: "object", properties: { city: { type: "string" } } },
        parse: JSON.parse,
        function: ({ city }) => {
          asked.push(city);
          return "sunny";
        },
      },
    };
    const runner = client.chat.completions.runTools({ model, stream, messages: said("weather in Paris?"), tools: [tool] });
    assert.equal(await runner.finalContent(), "It is sunny.");
    assert.deepEqual(asked, ["Paris"]);
  });
}

test("structured output, parsed", async () => {
  const body = { model, messages: said("Which city?"), response_format: zodResponseFormat(City, "city") };
  const whole = await client.chat.completions.parse(body);
  assert.deepEqual(whole.choices[0].message.parsed, PARIS);
  const streamed = await client.chat.completions.stream(body).finalChatCompletion();
  assert.deepEqual(streamed.choices[0].message.parsed, PARIS);
  const tools = [zodFunction({ name: "city", parameters: City })];
  const called = await client.chat.completions.parse({ model, messages: said("Which city?"), tools, tool_choice: "required" });
  assert.deepEqual(called.choices[0].message.tool_calls[0].function.parsed_arguments, PARIS);
});

test("completions and vectors", async () => {
  assert.equal((await client.completions.create({ model, prompt: "Hello" })).choices[0].text, "Hello world");
  const chunks = await collect(await client.completions.create({ model, prompt: "Hello", stream: true }));
  assert.equal(chunks.map((chunk) => chunk.choices[0]?.text ?? "").join(""), "Hello world");
  const vectors = await client.embeddings.create({ model, input: ["a", "bcd"] }); // asks for base64 by itself
  assert.deepEqual(vectors.data.map((one) => [...one.embedding]), [[1, 0.5, -0.25], [3, 0.5, -0.25]]);
  const floats = await client.embeddings.create({ model, input: "ab", encoding_format: "float" });
  assert.deepEqual(floats.data[0].embedding, [2, 0.5, -0.25]);
});

test("models", async () => {
  assert.deepEqual((await collect(client.models.list())).map((one) => one.id), [model]);
  assert.equal((await client.models.retrieve(model)).id, model);
  await assert.rejects(client.models.retrieve("gone"), NotFoundError);
});

test("responses: told, streamed, parsed, gone on with, read, deleted", async () => {
  const first = await client.responses.create({ model, input: "Hello" });
  assert.equal(first.output_text, "Hello world");
  const events = await collect(await client.responses.create({ model, input: "x", stream: true }));
  assert.equal(events.at(0).type, "response.created");
  assert.equal(events.at(-1).type, "response.completed");
  const stream = client.responses.stream({ model, input: "x", previous_response_id: first.id });
  const second = await stream.finalResponse();
  assert.equal(second.output_text, "Hello world");
  const body = { model, input: "Which city?", text: { format: zodTextFormat(City, "city") } };
  assert.deepEqual((await client.responses.parse(body)).output_parsed, PARIS);
  assert.equal((await client.responses.retrieve(first.id)).output_text, "Hello world");
  const items = await collect(client.responses.inputItems.list(second.id, { order: "asc" }));
  assert.deepEqual(items.map((item) => item.role), ["user", "assistant", "user"]);
  await client.responses.delete(first.id);
  await assert.rejects(client.responses.retrieve(first.id), NotFoundError);
});

test("tokens of a response, counted before it", async () => {
  assert.ok((await client.responses.inputTokens.count({ model, input: "Hello" })).input_tokens > 0);
});

test("a response's tools", async () => {
  const tools = [{ type: "function", name: "weather", parameters: { type: "object", properties: {} }, strict: false }];
  const first = await client.responses.create({ model, input: "weather in Paris?", tools });
  const [call] = first.output.filter((item) => item.type === "function_call");
  assert.deepEqual(JSON.parse(call.arguments), { city: "Paris" });
  const input = [{ type: "function_call_output", call_id: call.call_id, output: "sunny" }];
  const second = await client.responses.create({ model, input, tools, previous_response_id: first.id });
  assert.equal(second.output_text, "It is sunny.");
});

test("errors are the client's own classes", async () => {
  const fails = async (kind, status, work) => {
    const error = await work.then(() => assert.fail("it was answered"), (reason) => reason);
    assert.ok(error instanceof kind, `${error}`);
    assert.equal(error.status, status);
    return error;
  };
  const stranger = new OpenAI({ baseURL, apiKey: "wl-unknown", maxRetries: 0 });
  const create = (fields, by = client) => by.chat.completions.create({ model, messages: said("Hello"), ...fields });
  assert.equal((await fails(AuthenticationError, 401, create({}, stranger))).code, "invalid_api_key");
  assert.equal((await fails(BadRequestError, 400, create({ temperature: -1 }))).param, "temperature");
  assert.equal((await fails(NotFoundError, 404, create({ model: "gone" }))).code, "model_not_found");
  await fails(BadRequestError, 400, create({ messages: said("wrong") }));
  await fails(RateLimitError, 429, create({ messages: said("busy one") }));
  await fails(APIError, 413, create({ messages: said("x".repeat(40_000_000)) }));
});

test("the client's retry waits as long as it is told", async () => {
  const started = performance.now();
  const got = await client.chat.completions.create({ model, messages: said("busy two") }, { maxRetries: 2 });
  assert.equal(got.choices[0].message.content, "Hello world");
  assert.ok(performance.now() - started >= 990);
});

test("what is aborted ends, and the record says so", async () => {
  const abort = new AbortController();
  const body = { model, messages: said("hold it"), stream: true };
  const { data, request_id } = await client.chat.completions.create(body, { signal: abort.signal }).withResponse();
  let text = "";
  await assert.rejects(async () => {
    for await (const chunk of data) {
      text += chunk.choices[0]?.delta.content ?? "";
      if (text) abort.abort();
    }
    throw new APIUserAbortError(); // some versions end the loop in silence
  }, APIUserAbortError);
  assert.equal(text, "Hello");
  let record;
  for (let tries = 0; tries < 100 && record?.outcome === undefined; tries++) {
    record = await client.get(`/requests/${request_id}`).catch(() => undefined);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  assert.equal(record.outcome, "client_gone");
  await assert.rejects(
    client.chat.completions.create({ model, messages: said("hold it") }, { timeout: 100 }),
    OpenAI.APIConnectionTimeoutError,
  );
});
