// Vercel's `ai`, with `@ai-sdk/openai-compatible`.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, embed, generateObject, generateText, stepCountIs, streamObject, streamText, tool } from "ai";
import { z } from "zod";
import { assert, KEY, MODEL, run, URL } from "./check.mjs";

globalThis.AI_SDK_LOG_WARNINGS = false;
const provider = createOpenAICompatible({
  name: "nextn", baseURL: `${URL}/v1`, apiKey: KEY, includeUsage: true, supportsStructuredOutputs: true,
});
const common = {
  model: provider(MODEL), temperature: 0, maxRetries: 0,
  providerOptions: { nextn: { chat_template_kwargs: { enable_thinking: false } } },
};
const get_weather = tool({
  description: "Weather of a city",
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => ({ condition: "snowy", temperature_c: -3, city }),
});
const person = z.object({ name: z.string(), age: z.number().int() });
const about = "My name is Clara and I am 31 years old.";

await run({
  async "chat answers"() {
    const answer = await generateText({ ...common, prompt: "What is 20 + 15?" });
    assert.equal(answer.text, "20 + 15 = 35.");
    assert.ok(answer.usage.outputTokens > 0);
  },
  async "thinking is split out"() {
    const answer = await generateText({
      ...common, prompt: "What is 20 + 15?", providerOptions: { nextn: { chat_template_kwargs: { enable_thinking: true } } },
    });
    assert.ok(answer.reasoningText.length > 0);
    assert.match(answer.text, /35/);
  },
  async "stream with usage"() {
    const answer = streamText({ ...common, prompt: "What is 20 + 15?" });
    let text = "";
    for await (const part of answer.textStream) text += part;
    assert.equal(text, "20 + 15 = 35.");
    assert.ok((await answer.usage).outputTokens > 0);
  },
  async "tools are called and their results used"() {
    const answer = await generateText({
      ...common, prompt: "What is the weather in Oslo?", tools: { get_weather }, stopWhen: stepCountIs(3),
    });
    assert.deepEqual(answer.steps[0].toolCalls[0].input, { city: "Oslo" });
    assert.match(answer.text, /snowy/);
  },
  async "a stream with tools"() {
    const answer = streamText({
      ...common, prompt: "What is the weather in Oslo?", tools: { get_weather }, stopWhen: stepCountIs(3),
    });
    const kinds = [];
    for await (const part of answer.fullStream) kinds.push(part.type);
    assert.ok(kinds.includes("tool-call") && kinds.includes("tool-result"), kinds.join());
    assert.match(await answer.text, /snowy/);
  },
  async "forced tools"() {
    const answer = await generateText({
      ...common, prompt: "Tell me a joke.", tools: { get_weather }, toolChoice: "required", maxOutputTokens: 200,
    });
    assert.equal(answer.toolCalls[0].toolName, "get_weather");
  },
  async "structured output"() {
    const { object } = await generateObject({ ...common, prompt: about, schema: person, maxOutputTokens: 100 });
    assert.equal(typeof object.name, "string");
    const stream = streamObject({ ...common, prompt: about, schema: person, maxOutputTokens: 100 });
    for await (const _ of stream.partialObjectStream);
    assert.deepEqual(await stream.object, object);
  },
  async "embeddings"() {
    const { embedding } = await embed({ model: provider.textEmbeddingModel(MODEL), value: "a dog", maxRetries: 0 });
    assert.ok(embedding.length > 10);
  },
  async "errors have their types"() {
    await assert.rejects(generateText({ ...common, prompt: "Hello", topP: 7 }), (error) => {
      assert.ok(APICallError.isInstance(error) && error.statusCode === 400 && !error.isRetryable, String(error));
      return true;
    });
  },
});
