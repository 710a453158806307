// OpenAI's client for Node against the demo model: what a new user tries first.
import assert from "node:assert/strict";
import { test } from "node:test";

import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const { WARMLANE_URL: baseURL, WARMLANE_KEY: apiKey, WARMLANE_MODEL: model } = process.env;
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const question = "What is the capital city of France? Answer in one sentence.";

test("a streamed answer", async () => {
  const messages = [{ role: "user", content: question }];
  let text = "";
  for await (const chunk of await client.chat.completions.create({ model, messages, temperature: 0, stream: true }))
    text += chunk.choices[0]?.delta.content ?? "";
  assert.match(text, /Paris/);
});

test("a response, and a schema that is kept to", async () => {
  assert.match((await client.responses.create({ model, input: question, temperature: 0 })).output_text, /Paris/);
  const Verdict = z.object({ colour: z.enum(["red", "green"]), is_sure: z.boolean() });
  const messages = [{ role: "user", content: "Is grass red or green? Answer in JSON." }];
  const body = { model, messages, temperature: 0, response_format: zodResponseFormat(Verdict, "verdict") };
  const parsed = (await client.chat.completions.parse(body)).choices[0].message.parsed;
  assert.ok(["red", "green"].includes(parsed.colour));
});
