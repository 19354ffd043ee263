"""The `anthropic` package."""

import anthropic
from check import CITY, KEY, MODEL, QUESTION, URL, WEATHER, check, main, raised

client = anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0)
# This package's methods have no temperature any more.
GREEDY = {"temperature": 0}
TOOL = {"name": "get_weather", "description": "Weather of a city", "input_schema": CITY}


def ask(messages, **options):
    options = {"max_tokens": 200, "extra_body": GREEDY, "thinking": {"type": "disabled"}, **options}
    return client.messages.create(model=MODEL, messages=messages, **options)


@check
def a_message_is_answered():
    answer = ask(QUESTION)
    assert answer.content[0].text == "20 + 15 = 35." and answer.stop_reason == "end_turn", answer
    assert answer.usage.input_tokens > 0 and answer.usage.output_tokens > 0
    assert ask(QUESTION, max_tokens=2).stop_reason == "max_tokens"
    stopped = ask(QUESTION, stop_sequences=["="])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "=")


@check
def system_text_and_parts():
    answer = ask([{"role": "user", "content": [{"type": "text", "text": "What is 20 + 15?"}]}], system="Be brief.")
    assert "35" in answer.content[0].text


@check
def stream_with_usage():
    whole = ask(QUESTION)
    with client.messages.stream(model=MODEL, messages=QUESTION, max_tokens=200, extra_body=GREEDY,
                                thinking={"type": "disabled"}) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.usage.output_tokens == whole.usage.output_tokens and final.stop_reason == "end_turn"


@check
def thinking():
    answer = ask(QUESTION, thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=1500)
    kinds = [block.type for block in answer.content]
    assert kinds == ["thinking", "text"] and answer.content[0].thinking, answer
    assert "35" in answer.content[1].text


@check
def tools_and_their_results():
    answer = ask(WEATHER, tools=[TOOL])
    call = next(block for block in answer.content if block.type == "tool_use")
    assert (call.name, call.input, answer.stop_reason) == ("get_weather", {"city": "Oslo"}, "tool_use")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": '{"condition": "snowy", "temperature_c": -3}'}
    answer = ask([*WEATHER, {"role": "assistant", "content": answer.to_dict()["content"]},
                  {"role": "user", "content": [result]}], tools=[TOOL])
    assert "snowy" in answer.content[0].text, answer


@check
def a_stream_of_tool_input():
    with client.messages.stream(model=MODEL, messages=WEATHER, max_tokens=200, extra_body=GREEDY, tools=[TOOL],
                                thinking={"type": "disabled"}) as stream:
        parts = [event.partial_json for event in stream if event.type == "input_json"]
        final = stream.get_final_message()
    assert parts and final.content[-1].input == {"city": "Oslo"}


@check
def forced_tools():
    for choice in [{"type": "any"}, {"type": "tool", "name": "get_weather"}]:
        answer = ask([{"role": "user", "content": "Tell me a joke."}], tools=[TOOL], tool_choice=choice)
        call = next(block for block in answer.content if block.type == "tool_use")
        assert call.name == "get_weather" and isinstance(call.input["city"], str)


@check
def parallel_calls():
    calls = [{"type": "tool_use", "id": f"t{i}", "name": "get_weather", "input": {"city": city}}
             for i, city in enumerate(["Oslo", "Rome"])]
    results = [{"type": "tool_result", "tool_use_id": f"t{i}", "content": "sunny"} for i in (1, 0)]
    answer = ask([*WEATHER, {"role": "assistant", "content": calls}, {"role": "user", "content": results}], tools=[TOOL])
    assert answer.stop_reason in ("end_turn", "tool_use")


@check
def tokens_are_counted():
    counted = client.messages.count_tokens(model=MODEL, messages=QUESTION, thinking={"type": "disabled"}).input_tokens
    usage = ask(QUESTION).usage
    cached = (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    assert counted == usage.input_tokens + cached, (counted, usage)


@check
def errors_have_their_types():
    wrong = raised(anthropic.BadRequestError, lambda: ask([]))
    assert wrong.body["type"] == "error" and wrong.body["error"]["type"] == "invalid_request_error", wrong.body
    raised(anthropic.BadRequestError, lambda: ask([{"role": "user", "content": "word " * 5000}]))
    error = raised(anthropic.AuthenticationError, lambda: client.with_options(api_key="wrong").messages.create(
        model=MODEL, messages=QUESTION, max_tokens=5))
    assert error.status_code == 401


if __name__ == "__main__":
    main()
