// The `ollama` package.
import { Ollama } from "ollama";
import { assert, KEY, MODEL, run, URL } from "./check.mjs";

const client = new Ollama({ host: URL, headers: { Authorization: `Bearer ${KEY}` } });
const question = [{ role: "user", content: "What is 20 + 15?" }];
const weather = [{ role: "user", content: "What is the weather in Oslo?" }];
const city = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tool = { type: "function", function: { name: "get_weather", description: "Weather of a city", parameters: city } };
const greedy = { temperature: 0, num_predict: 200 };
const chat = (messages, options = {}) => client.chat({ model: MODEL, messages, think: false, options: greedy, ...options });

await run({
  async "models"() {
    assert.deepEqual((await client.list()).models.map((model) => model.name), [`${MODEL}:latest`]);
    assert.ok((await client.show({ model: MODEL })).capabilities.includes("tools"));
    assert.equal((await client.ps()).models.length, 1);
    assert.ok((await client.version()).version);
  },
  async "chat answers"() {
    const answer = await chat(question);
    assert.equal(answer.message.content, "20 + 15 = 35.");
    assert.ok(answer.done && answer.eval_count > 0 && answer.done_reason === "stop");
  },
  async "a stream says the same"() {
    let text = "", last;
    for await (const part of await chat(question, { stream: true })) {
      text += part.message.content;
      last = part;
    }
    assert.equal(text, "20 + 15 = 35.");
    assert.ok(last.done && last.eval_duration > 0);
  },
  async "a stream that is left early"() {
    for await (const _ of await chat(question, { stream: true })) break;
    assert.equal((await chat(question)).message.content, "20 + 15 = 35.");
  },
  async "thinking is a field"() {
    const { message } = await chat(question, { think: true });
    assert.ok(message.thinking && message.content.includes("35"));
  },
  async "tools and their results"() {
    const { message } = await chat(weather, { tools: [tool] });
    assert.deepEqual(message.tool_calls[0].function.arguments, { city: "Oslo" });
    const result = { role: "tool", tool_name: "get_weather", content: '{"condition": "snowy"}' };
    assert.match((await chat([...weather, message, result], { tools: [tool] })).message.content, /snowy/);
  },
  async "structured output"() {
    const properties = { name: { type: "string" }, age: { type: "integer" } };
    const format = { type: "object", properties, required: ["name", "age"], additionalProperties: false };
    const about = [{ role: "user", content: "My name is Clara and I am 31 years old." }];
    assert.deepEqual(Object.keys(JSON.parse((await chat(about, { format })).message.content)), ["name", "age"]);
  },
  async "generate and its context"() {
    const ask = (prompt, more = {}) => client.generate({ model: MODEL, prompt, think: false, options: greedy, ...more });
    const first = await ask("What is 20 + 15?");
    assert.equal(first.response, "20 + 15 = 35.");
    const second = await ask("Hello", { context: first.context });
    assert.deepEqual(second.context.slice(0, first.context.length), first.context);
  },
  async "embeddings"() {
    assert.equal((await client.embed({ model: MODEL, input: ["a dog", "a cat"] })).embeddings.length, 2);
  },
  async "errors are told"() {
    await assert.rejects(chat(question, { options: { top_p: 7 } }), /top_p/);
    const stranger = new Ollama({ host: URL, headers: { Authorization: "Bearer wrong" } });
    await assert.rejects(stranger.list(), (error) => error.status_code === 401);
  },
});
