"""The `litellm` package, over OpenAI's interface, Anthropic's and Ollama's."""

import json
import os

# It looks for a list of prices on the net otherwise.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from check import ABOUT_CLARA, CITY, KEY, MODEL, PERSON, QUESTION, URL, WEATHER, check, main, raised

litellm.telemetry = False
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city", "parameters": CITY}}


def chat(messages, provider="openai", **options):
    if provider == "openai":
        options = {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}, "api_base": f"{URL}/v1", **options}
    else:
        options = {"api_base": URL, "max_tokens": 200, **options}
    return litellm.completion(model=f"{provider}/{MODEL}", api_key=KEY, messages=messages, temperature=0, **options)


@check
def chat_answers():
    answer = chat(QUESTION)
    assert answer.choices[0].message.content == "20 + 15 = 35." and answer.usage.completion_tokens > 0


@check
def stream_with_usage():
    chunks = list(chat(QUESTION, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "20 + 15 = 35."
    assert chunks[-1].usage.completion_tokens > 0


@check
def tools():
    for choice in ["auto", "required"]:
        call = chat(WEATHER, tools=[TOOL], tool_choice=choice).choices[0].message.tool_calls[0]
        assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Oslo"})


@check
def structured_output():
    form = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    answer = chat([{"role": "user", "content": ABOUT_CLARA}], response_format=form, max_tokens=80)
    assert set(json.loads(answer.choices[0].message.content)) == {"name", "age"}


@check
def embeddings():
    answer = litellm.embedding(model=f"openai/{MODEL}", input=["a dog"], api_base=f"{URL}/v1", api_key=KEY)
    assert len(answer.data[0]["embedding"]) > 10


@check
def anthropics_interface():
    answer = chat(QUESTION, provider="anthropic", max_tokens=600)
    assert "35" in answer.choices[0].message.content, answer
    text = "".join(c.choices[0].delta.content or "" for c in chat(QUESTION, provider="anthropic", max_tokens=600, stream=True))
    assert "35" in text, text


@check
def ollamas_interface():
    answer = chat(QUESTION, provider="ollama_chat", think=False)
    assert answer.choices[0].message.content == "20 + 15 = 35.", answer
    text = "".join(c.choices[0].delta.content or "" for c in chat(QUESTION, provider="ollama_chat", think=False, stream=True))
    assert text == "20 + 15 = 35.", text
    call = chat(WEATHER, provider="ollama_chat", think=False, tools=[TOOL]).choices[0].message.tool_calls[0]
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Oslo"})


@check
def errors_have_their_types():
    raised(litellm.BadRequestError, lambda: chat(QUESTION, top_p=7))
    raised(litellm.AuthenticationError, lambda: litellm.completion(
        model=f"openai/{MODEL}", messages=QUESTION, api_base=f"{URL}/v1", api_key="wrong", num_retries=0))
    raised(litellm.ContextWindowExceededError, lambda: chat([{"role": "user", "content": "word " * 5000}]))


if __name__ == "__main__":
    main()
