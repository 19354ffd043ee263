// The `openai` package.
import OpenAI from "openai";
import { assert, KEY, MODEL, run, URL } from "./check.mjs";

const client = new OpenAI({ baseURL: `${URL}/v1`, apiKey: KEY, maxRetries: 0 });
const question = [{ role: "user", content: "What is 20 + 15?" }];
const weather = [{ role: "user", content: "What is the weather in Oslo?" }];
const city = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tool = { type: "function", function: { name: "get_weather", description: "Weather of a city", parameters: city } };
const chat = (messages, options = {}) =>
  client.chat.completions.create({
    model: MODEL, messages, temperature: 0, chat_template_kwargs: { enable_thinking: false }, ...options,
  });

await run({
  async "chat answers"() {
    const answer = await chat(question);
    assert.equal(answer.choices[0].message.content, "20 + 15 = 35.");
    assert.ok(answer.usage.completion_tokens > 0);
  },
  async "stream with usage"() {
    let text = "", usage;
    for await (const chunk of await chat(question, { stream: true, stream_options: { include_usage: true } })) {
      text += chunk.choices[0]?.delta.content ?? "";
      usage = chunk.usage ?? usage;
    }
    assert.equal(text, "20 + 15 = 35.");
    assert.ok(usage.completion_tokens > 0);
  },
  async "a stream that is left early"() {
    const stream = await chat(question, { stream: true, ignore_eos: true, max_completion_tokens: 500 });
    for await (const _ of stream) break;
    assert.equal((await chat(question)).choices[0].message.content, "20 + 15 = 35.");
  },
  async "tools and their results"() {
    const { message, finish_reason } = (await chat(weather, { tools: [tool] })).choices[0];
    assert.equal(finish_reason, "tool_calls");
    assert.deepEqual(JSON.parse(message.tool_calls[0].function.arguments), { city: "Oslo" });
    const result = { role: "tool", tool_call_id: message.tool_calls[0].id, content: '{"condition": "snowy"}' };
    assert.match((await chat([...weather, message, result], { tools: [tool] })).choices[0].message.content, /snowy/);
  },
  async "the stream helper with tools"() {
    const stream = client.chat.completions.stream({
      model: MODEL, messages: weather, tools: [tool], temperature: 0, chat_template_kwargs: { enable_thinking: false },
    });
    const final = await stream.finalChatCompletion();
    assert.deepEqual(JSON.parse(final.choices[0].message.tool_calls[0].function.arguments), { city: "Oslo" });
  },
  async "forced tools"() {
    for (const tool_choice of ["required", { type: "function", function: { name: "get_weather" } }]) {
      const joke = [{ role: "user", content: "Tell me a joke." }];
      const answer = await chat(joke, { tools: [tool], tool_choice, max_completion_tokens: 200 });
      assert.equal(answer.choices[0].message.tool_calls[0].function.name, "get_weather");
    }
  },
  async "parallel calls"() {
    const tokens = await client.post("/../tokenize", { body: { content: "<|im_end|><|endoftext|>" } });
    const logit_bias = Object.fromEntries(tokens.tokens.map((token) => [token, -100]));
    const answer = await chat(weather, { tools: [tool], tool_choice: "required", logit_bias, max_completion_tokens: 40 });
    const ids = answer.choices[0].message.tool_calls.map((call) => call.id);
    assert.ok(ids.length >= 2 && new Set(ids).size === ids.length);
  },
  async "structured output"() {
    const schema = {
      type: "object", properties: { name: { type: "string" }, age: { type: "integer" } }, required: ["name", "age"],
      additionalProperties: false,
    };
    const answer = await chat([{ role: "user", content: "My name is Clara and I am 31 years old." }], {
      response_format: { type: "json_schema", json_schema: { name: "person", strict: true, schema } },
      max_completion_tokens: 80,
    });
    assert.deepEqual(Object.keys(JSON.parse(answer.choices[0].message.content)), ["name", "age"]);
  },
  async "responses"() {
    const input = "What is 20 + 15?";
    const answer = await client.responses.create({ model: MODEL, input, temperature: 0, reasoning: { effort: "none" } });
    assert.equal(answer.output_text, "20 + 15 = 35.");
    const events = [];
    const options = { model: MODEL, input, temperature: 0, reasoning: { effort: "none" }, stream: true };
    for await (const event of await client.responses.create(options)) events.push(event.type);
    assert.equal(events.at(-1), "response.completed");
  },
  async "embeddings"() {
    const answer = await client.embeddings.create({ model: MODEL, input: ["a dog", "a cat"] });
    assert.equal(answer.data.length, 2);
    assert.ok(answer.data[0].embedding.length > 10);
  },
  async "errors have their types"() {
    await assert.rejects(chat(question, { top_p: 7 }), OpenAI.BadRequestError);
    await assert.rejects(client.models.retrieve("no-such-model"), OpenAI.NotFoundError);
    const stranger = new OpenAI({ baseURL: `${URL}/v1`, apiKey: "wrong", maxRetries: 0 });
    await assert.rejects(stranger.models.list(), OpenAI.AuthenticationError);
  },
});
