"""The `openai` package."""

import base64
import json

import openai
from check import ABOUT_CLARA, CITY, KEY, MODEL, PERSON, QUESTION, URL, WEATHER, check, main, raised

client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city", "parameters": CITY}}
OFF = {"chat_template_kwargs": {"enable_thinking": False}}


def chat(messages, **options):
    options.setdefault("extra_body", OFF)
    return client.chat.completions.create(model=MODEL, messages=messages, temperature=0, **options)


@check
def models():
    assert MODEL in [m.id for m in client.models.list().data]
    assert client.models.retrieve(MODEL).id == MODEL


@check
def chat_answers():
    answer = chat(QUESTION)
    assert answer.choices[0].message.content == "20 + 15 = 35.", answer
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


@check
def thinking_is_split_out():
    message = chat(QUESTION, extra_body={"chat_template_kwargs": {"enable_thinking": True}}).choices[0].message
    assert "35" in message.content and "</think>" not in message.content
    assert message.reasoning_content


@check
def stream_with_usage():
    whole = chat(QUESTION)
    chunks = list(chat(QUESTION, stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


@check
async def async_streams_at_the_same_time():
    import asyncio

    async_client = openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY)

    async def one(a, b):
        stream = await async_client.chat.completions.create(
            model=MODEL, temperature=0, stream=True, extra_body=OFF,
            messages=[{"role": "user", "content": f"What is {a} + {b}?"}],
        )
        text = "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])
        assert str(a + b) in text, text

    await asyncio.gather(*(one(10 + i, 21) for i in range(8)))


@check
def stop_n_seed_logprobs():
    answer = chat(QUESTION, stop=["="], logprobs=True, top_logprobs=2)
    assert answer.choices[0].message.content == "20 + 15 "
    assert all(len(token.top_logprobs) == 2 for token in answer.choices[0].logprobs.content)
    two = client.chat.completions.create(
        model=MODEL, messages=QUESTION, n=2, seed=3, temperature=1.0, max_completion_tokens=8, extra_body=OFF)
    assert [c.index for c in two.choices] == [0, 1]
    assert two.usage.completion_tokens <= 16


@check
def tools_and_their_results():
    answer = chat(WEATHER, tools=[TOOL])
    call = answer.choices[0].message.tool_calls[0]
    assert answer.choices[0].finish_reason == "tool_calls"
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Oslo"})
    result = {"role": "tool", "tool_call_id": call.id, "content": '{"condition": "snowy", "temperature_c": -3}'}
    answer = chat([*WEATHER, answer.choices[0].message.model_dump(exclude_none=True), result], tools=[TOOL])
    assert "snowy" in answer.choices[0].message.content, answer


@check
def a_stream_of_tool_arguments():
    name, arguments = "", ""
    for chunk in chat(WEATHER, tools=[TOOL], stream=True):
        for call in chunk.choices[0].delta.tool_calls or []:
            name += call.function.name or ""
            arguments += call.function.arguments or ""
    assert (name, json.loads(arguments)) == ("get_weather", {"city": "Oslo"})


@check
def forced_tools():
    for choice in ["required", {"type": "function", "function": {"name": "get_weather"}}]:
        answer = chat([{"role": "user", "content": "Tell me a joke."}], tools=[TOOL], tool_choice=choice,
                      max_completion_tokens=200)
        call = answer.choices[0].message.tool_calls[0]
        assert call.function.name == "get_weather" and isinstance(json.loads(call.function.arguments)["city"], str)
    assert chat(WEATHER, tools=[TOOL], tool_choice="none").choices[0].message.tool_calls is None


@check
def parallel_calls():
    # Two calls of one turn go in, with results in the other order; one call at most comes out where that is asked for.
    calls = [{"id": f"call_{i}", "type": "function",
              "function": {"name": "get_weather", "arguments": json.dumps({"city": city})}}
             for i, city in enumerate(["Oslo", "Rome"])]
    results = [{"role": "tool", "tool_call_id": f"call_{i}", "content": '{"condition": "sunny"}'} for i in (1, 0)]
    messages = [{"role": "user", "content": "Weather in Oslo and Rome?"},
                {"role": "assistant", "content": None, "tool_calls": calls}, *results]
    assert chat(messages, tools=[TOOL]).choices[0].finish_reason in ("stop", "tool_calls")
    one = chat(WEATHER, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_completion_tokens=200)
    assert len(one.choices[0].message.tool_calls) == 1
    # A small model makes one call and ends; forbidden to end, it makes more.
    ends = client.post("/../tokenize", body={"content": "<|im_end|><|endoftext|>"}, cast_to=object)["tokens"]
    more = chat(WEATHER, tools=[TOOL], tool_choice="required", max_completion_tokens=40,
                logit_bias={str(token): -100 for token in ends}).choices[0].message.tool_calls
    assert len(more) >= 2 and len({call.id for call in more}) == len(more), more
    assert all(json.loads(call.function.arguments)["city"] for call in more[:2])


@check
def structured_output():
    schema = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    answer = chat([{"role": "user", "content": ABOUT_CLARA}], response_format=schema, max_completion_tokens=80)
    person = json.loads(answer.choices[0].message.content)
    assert set(person) == {"name", "age"} and isinstance(person["age"], int)
    answer = chat([{"role": "user", "content": ABOUT_CLARA}], response_format={"type": "json_object"}, max_completion_tokens=200)
    assert isinstance(json.loads(answer.choices[0].message.content), dict)


@check
def parsed_output():
    import pydantic

    class Person(pydantic.BaseModel):
        name: str
        age: int

    answer = client.chat.completions.parse(
        model=MODEL, temperature=0, extra_body=OFF, response_format=Person, max_completion_tokens=80,
        messages=[{"role": "user", "content": ABOUT_CLARA}])
    assert isinstance(answer.choices[0].message.parsed, Person)


@check
def text_completions():
    answer = client.completions.create(model=MODEL, prompt=["Once upon a", "Once upon"], max_tokens=6, temperature=0)
    assert [c.index for c in answer.choices] == [0, 1] and answer.choices[0].finish_reason == "length"
    chunks = client.completions.create(model=MODEL, prompt="Once upon a", max_tokens=6, temperature=0, stream=True)
    assert "".join(c.choices[0].text for c in chunks if c.choices) == answer.choices[0].text


@check
def embeddings():
    texts = ["a dog", "a cat"]
    packed = client.embeddings.create(model=MODEL, input=texts)
    plain = client.embeddings.create(model=MODEL, input=texts, encoding_format="float")
    assert len(packed.data) == 2 and packed.usage.prompt_tokens > 0
    for a, b in zip(packed.data, plain.data):
        assert max(abs(x - y) for x, y in zip(a.embedding, b.embedding)) < 1e-6
        assert abs(sum(x * x for x in a.embedding) - 1) < 1e-3


@check
def responses():
    answer = client.responses.create(model=MODEL, input="What is 20 + 15?", temperature=0, reasoning={"effort": "none"})
    assert answer.output_text == "20 + 15 = 35." and answer.status == "completed", answer
    assert answer.usage.input_tokens > 0
    with client.responses.stream(model=MODEL, input="What is 20 + 15?", temperature=0, reasoning={"effort": "none"}) as stream:
        kinds = [event.type for event in stream]
        assert stream.get_final_response().output_text == answer.output_text
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed", kinds
    tool = {"type": "function", "name": "get_weather", "parameters": CITY, "strict": True}
    answer = client.responses.create(model=MODEL, input="What is the weather in Oslo?", tools=[tool], tool_choice="required",
                                     temperature=0, reasoning={"effort": "none"}, max_output_tokens=200)
    call = next(item for item in answer.output if item.type == "function_call")
    assert json.loads(call.arguments)["city"]


@check
def responses_go_on_with_kept_ones():
    brief = {"model": MODEL, "temperature": 0, "reasoning": {"effort": "none"}}
    first = client.responses.create(input="What is 20 + 15?", **brief)
    assert first.store and client.responses.retrieve(first.id).output_text == first.output_text
    then = client.responses.create(input="Double it.", previous_response_id=first.id, **brief)
    whole = [{"role": "user", "content": "What is 20 + 15?"}, {"role": "assistant", "content": first.output_text},
             {"role": "user", "content": "Double it."}]
    same = client.responses.create(input=whole, store=False, **brief)
    assert (same.output_text, same.usage.input_tokens) == (then.output_text, then.usage.input_tokens)
    assert not same.store
    count = client.responses.input_tokens.count(model=MODEL, input=whole, reasoning={"effort": "none"})
    assert count.input_tokens == same.usage.input_tokens
    items = list(client.responses.input_items.list(then.id, limit=1, order="asc"))
    assert [item.type for item in items] == ["message"] * 3, items
    client.responses.delete(first.id)
    raised(openai.NotFoundError, lambda: client.responses.retrieve(first.id))
    lost = raised(openai.BadRequestError,
                  lambda: client.responses.create(input="And now?", previous_response_id=first.id, **brief))
    assert lost.code == "previous_response_not_found", lost.body
    raised(openai.NotFoundError, lambda: client.responses.retrieve(same.id))


@check
def a_form_beside_tools():
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    answer = chat([{"role": "user", "content": ABOUT_CLARA}], tools=[TOOL], response_format=form, max_completion_tokens=300)
    message = answer.choices[0].message
    assert message.tool_calls or set(json.loads(message.content)) == {"name", "age"}, answer
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [
        {"type": "function", "function": {"name": "get_weather"}}]}}
    other = {"type": "function", "function": {"name": "other", "parameters": {"type": "object", "properties": {}}}}
    answer = chat(WEATHER, tools=[other, TOOL], tool_choice=allowed, max_completion_tokens=200)
    assert [call.function.name for call in answer.choices[0].message.tool_calls][0] == "get_weather", answer


@check
def errors_have_their_types():
    wrong = raised(openai.BadRequestError, lambda: chat(QUESTION, extra_body={**OFF, "top_k": -5.5}))
    assert wrong.status_code == 400 and wrong.type == "invalid_request_error", wrong.body
    out_of_range = raised(openai.BadRequestError, lambda: chat(QUESTION, top_logprobs=99, logprobs=True))
    assert out_of_range.param == "top_logprobs", out_of_range.body
    raised(openai.AuthenticationError, lambda: client.with_options(api_key="wrong").models.list())
    raised(openai.NotFoundError, lambda: client.models.retrieve("no-such-model"))
    too_long = raised(openai.BadRequestError, lambda: chat([{"role": "user", "content": "word " * 5000}]))
    assert too_long.code == "context_length_exceeded", too_long.body


if __name__ == "__main__":
    main()
