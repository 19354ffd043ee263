"""The packages `langchain-openai` and `langchain-ollama`."""

from check import ABOUT_CLARA, CITY, KEY, MODEL, PERSON, URL, check, main, raised
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_ollama import ChatOllama, OllamaEmbeddings
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from openai import AuthenticationError, BadRequestError

OFF = {"chat_template_kwargs": {"enable_thinking": False}}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city", "parameters": CITY}}


def model(**options):
    options = {"api_key": KEY, "extra_body": OFF, "temperature": 0, "max_retries": 0, **options}
    return ChatOpenAI(base_url=f"{URL}/v1", model=MODEL, **options)


@check
def chat_answers():
    answer = model().invoke("What is 20 + 15?")
    assert answer.content == "20 + 15 = 35." and answer.usage_metadata["output_tokens"] > 0


@check
def stream_with_usage():
    whole = None
    for chunk in model(stream_usage=True).stream("What is 20 + 15?"):
        whole = chunk if whole is None else whole + chunk
    assert whole.content == "20 + 15 = 35." and whole.usage_metadata["output_tokens"] > 0, whole


@check
def many_at_once():
    answers = model().batch([f"What is {n} + 15?" for n in range(20, 26)])
    assert all(str(n + 15) in answer.content for n, answer in zip(range(20, 26), answers))


@check
def tools_and_their_results():
    bound = model().bind_tools([TOOL])
    question = HumanMessage("What is the weather in Oslo?")
    call = bound.invoke([question])
    assert call.tool_calls[0]["name"] == "get_weather" and call.tool_calls[0]["args"] == {"city": "Oslo"}
    result = ToolMessage('{"condition": "snowy", "temperature_c": -3}', tool_call_id=call.tool_calls[0]["id"])
    assert "snowy" in bound.invoke([question, call, result]).content


@check
def forced_tools():
    forced = model().bind_tools([TOOL], tool_choice="get_weather").invoke("Tell me a joke.")
    assert forced.tool_calls[0]["name"] == "get_weather"


@check
def parallel_calls():
    calls = [{"id": f"c{i}", "name": "get_weather", "args": {"city": city}} for i, city in enumerate(["Oslo", "Rome"])]
    messages = [HumanMessage("Weather in Oslo and Rome?"), AIMessage("", tool_calls=calls),
                *(ToolMessage("sunny", tool_call_id=f"c{i}") for i in (1, 0))]
    assert isinstance(model().bind_tools([TOOL]).invoke(messages), AIMessage)


@check
def structured_output():
    for method in ["json_schema", "function_calling"]:
        schema = {"title": "person", "description": "A person", **PERSON}
        person = model(max_tokens=100).with_structured_output(schema, method=method).invoke(ABOUT_CLARA)
        assert set(person) == {"name", "age"}, (method, person)


@check
def embeddings():
    embedder = OpenAIEmbeddings(base_url=f"{URL}/v1", api_key=KEY, model=MODEL, check_embedding_ctx_length=False)
    assert len(embedder.embed_documents(["a dog", "a cat"])) == 2


@check
def ollamas_interface():
    headers = {"headers": {"Authorization": f"Bearer {KEY}"}}
    chat = ChatOllama(model=MODEL, base_url=URL, temperature=0, reasoning=False, num_predict=200, client_kwargs=headers)
    answer = chat.invoke("What is 20 + 15?")
    assert answer.content == "20 + 15 = 35." and answer.usage_metadata["output_tokens"] > 0, answer
    call = chat.bind_tools([TOOL]).invoke("What is the weather in Oslo?")
    assert call.tool_calls[0]["args"] == {"city": "Oslo"}, call
    result = ToolMessage('{"condition": "snowy"}', tool_call_id=call.tool_calls[0]["id"], name="get_weather")
    assert "snowy" in chat.bind_tools([TOOL]).invoke([HumanMessage("What is the weather in Oslo?"), call, result]).content
    person = chat.with_structured_output({"title": "person", "description": "A person", **PERSON}, method="json_schema")
    assert set(person.invoke(ABOUT_CLARA)) == {"name", "age"}
    assert len(OllamaEmbeddings(model=MODEL, base_url=URL, client_kwargs=headers).embed_documents(["a dog", "a cat"])) == 2


@check
def errors_have_their_types():
    raised(BadRequestError, lambda: model(top_p=7).invoke("Hello"))
    raised(AuthenticationError, lambda: model(api_key="wrong").invoke("Hello"))


if __name__ == "__main__":
    main()
