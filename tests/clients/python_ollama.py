"""The `ollama` package."""

import asyncio
import json

import httpx
import ollama
from check import ABOUT_CLARA, CITY, KEY, MODEL, PERSON, QUESTION, URL, WEATHER, check, main, raised

HEADERS = {"Authorization": f"Bearer {KEY}"}
client = ollama.Client(host=URL, headers=HEADERS)
GREEDY = {"temperature": 0, "num_predict": 200}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city", "parameters": CITY}}


def chat(messages, **options):
    return client.chat(MODEL, messages, **{"think": False, "options": GREEDY, **options})


@check
def models():
    assert [m.model for m in client.list().models] == [f"{MODEL}:latest"]
    show = client.show(MODEL)
    assert {"completion", "tools", "thinking", "insert"} <= set(show.capabilities), show.capabilities
    assert show.modelinfo["general.architecture"] == "qwen35" and show.details.quantization_level
    running = client.ps().models[0]
    assert running.context_length == 2048 and running.size > 0 and running.expires_at
    assert httpx.get(f"{URL}/api/version", headers=HEADERS).json()["version"]


@check
def the_server_is_found():
    assert httpx.head(URL).status_code == 200
    assert httpx.get(URL, headers={"Accept": "application/json"}).text == "Ollama is running"
    assert httpx.get(URL, headers={"Accept": "text/html"}).text.startswith("<!")


@check
def chat_answers():
    answer = chat(QUESTION)
    assert answer.message.content == "20 + 15 = 35." and answer.message.role == "assistant", answer
    assert answer.done and answer.done_reason == "stop" and answer.model == MODEL
    assert answer.eval_count > 0 and answer.prompt_eval_count > 0 and answer.total_duration >= answer.eval_duration > 0


@check
def a_stream_says_the_same():
    parts = list(chat(QUESTION, stream=True))
    assert "".join(part.message.content or "" for part in parts) == "20 + 15 = 35."
    assert len(parts) > 2 and parts[-1].done and not any(part.done for part in parts[:-1])
    assert parts[-1].eval_count > 0


@check
def thinking_is_a_field():
    message = chat(QUESTION, think=True).message
    assert message.thinking and "35" in message.content and "</think>" not in message.content
    parts = list(chat(QUESTION, think="low", stream=True))
    assert "".join(part.message.thinking or "" for part in parts)
    assert not chat(QUESTION, think=False).message.thinking


@check
def tools_and_their_results():
    message = chat(WEATHER, tools=[TOOL]).message
    call = message.tool_calls[0].function
    assert (call.name, dict(call.arguments)) == ("get_weather", {"city": "Oslo"})
    result = {"role": "tool", "tool_name": "get_weather", "content": '{"condition": "snowy", "temperature_c": -3}'}
    answer = chat([*WEATHER, message, result], tools=[TOOL])
    assert "snowy" in answer.message.content, answer
    calls = [call for part in chat(WEATHER, tools=[TOOL], stream=True) for call in part.message.tool_calls or []]
    assert [(call.function.name, dict(call.function.arguments)) for call in calls] == [("get_weather", {"city": "Oslo"})]


@check
def a_python_function_is_a_tool():
    def get_weather(city: str) -> str:
        """Weather of a city

        Args:
            city: The city
        """
        return f"{city}: snowy"

    call = chat(WEATHER, tools=[get_weather]).message.tool_calls[0].function
    assert "Oslo" in get_weather(**call.arguments)


@check
def structured_output():
    person = json.loads(chat([{"role": "user", "content": ABOUT_CLARA}], format=PERSON).message.content)
    assert set(person) == {"name", "age"} and isinstance(person["age"], int)
    assert isinstance(json.loads(chat([{"role": "user", "content": ABOUT_CLARA}], format="json").message.content), dict)


@check
def generate_and_its_context():
    first = client.generate(MODEL, "What is 20 + 15?", think=False, options=GREEDY)
    assert first.response == "20 + 15 = 35." and len(first.context) == first.prompt_eval_count + first.eval_count
    second = client.generate(MODEL, "And 20 + 16?", context=first.context, think=False, options=GREEDY)
    assert second.prompt_eval_count > len(first.context) and list(second.context[:len(first.context)]) == list(first.context)
    parts = list(client.generate(MODEL, "What is 20 + 15?", think=False, options=GREEDY, stream=True))
    assert "".join(part.response for part in parts) == first.response and parts[-1].context == first.context
    with_system = client.generate(MODEL, "Hello", system="You are a cat.", think=False, options=GREEDY)
    assert with_system.prompt_eval_count > client.generate(MODEL, "Hello", think=False, options=GREEDY).prompt_eval_count


@check
def raw_prompts_gaps_and_options():
    raw = client.generate(MODEL, "Once upon a", raw=True, options={"temperature": 0, "num_predict": 6})
    assert raw.response and raw.done_reason == "length" and raw.eval_count == 6 and raw.context is None
    gap = client.generate(MODEL, "def add(a, b):\n    return ", suffix="\n", options={"temperature": 0, "num_predict": 8})
    assert gap.response
    options = {"temperature": 1.0, "seed": 3, "top_k": 20, "top_p": 0.9, "repeat_penalty": 1.1, "num_predict": 8, "num_ctx": 4096}
    same = [client.generate(MODEL, "Tell me a story.", options=options).response for _ in range(2)]
    assert same[0] == same[1]
    assert chat(QUESTION, options={**GREEDY, "stop": ["="]}).message.content.strip() == "20 + 15"


@check
def log_probabilities():
    answer = chat(QUESTION, logprobs=True, top_logprobs=2)
    assert len(answer.logprobs) >= 5 and all(len(token.top_logprobs) == 2 for token in answer.logprobs)


@check
def loading_and_keeping():
    assert client.generate(MODEL, "").done_reason == "load"
    assert client.generate(MODEL, keep_alive=0).done_reason == "unload"
    assert chat(QUESTION, keep_alive="5m").message.content == "20 + 15 = 35."


@check
async def async_streams_at_the_same_time():
    several = ollama.AsyncClient(host=URL, headers=HEADERS)

    async def one(a):
        question = [{"role": "user", "content": f"What is {a} + 21?"}]
        stream = await several.chat(MODEL, question, think=False, options=GREEDY, stream=True)
        text = "".join([part.message.content or "" async for part in stream])
        assert str(a + 21) in text, text

    await asyncio.gather(*(one(10 + i) for i in range(8)))


@check
def embeddings():
    answer = client.embed(MODEL, ["a dog", "a cat"])
    assert len(answer.embeddings) == 2 and answer.prompt_eval_count > 0
    assert all(abs(sum(x * x for x in vector) - 1) < 1e-3 for vector in answer.embeddings)
    assert len(client.embeddings(MODEL, "a dog").embedding) == len(answer.embeddings[0])


@check
def pulling_what_is_there():
    assert client.pull(MODEL).status == "success"
    assert [part.status for part in client.pull(MODEL, stream=True)][-1] == "success"


@check
def errors_are_told():
    wrong = raised(ollama.ResponseError, lambda: chat(QUESTION, options={"top_p": 7}))
    assert wrong.status_code == 400 and "top_p" in wrong.error, wrong
    stranger = ollama.Client(host=URL, headers={"Authorization": "Bearer wrong"})
    assert raised(ollama.ResponseError, stranger.list).status_code == 401
    picture = [{"role": "user", "content": "What is this?", "images": ["aGVsbG8="]}]
    assert "images" in raised(ollama.ResponseError, lambda: chat(picture)).error
    assert raised(ollama.ResponseError, lambda: client.copy(MODEL, "other")).status_code == 501
    assert raised(ollama.ResponseError, lambda: client.pull("someone/else")).status_code == 501
    assert raised(ollama.ResponseError, lambda: client.delete(MODEL)).status_code == 501
    assert raised(ollama.ResponseError, lambda: list(chat(QUESTION, stream=True, think="hard"))).status_code == 400


if __name__ == "__main__":
    main()
