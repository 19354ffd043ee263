"""Conversations with which templates.py compares renderings: name, and the arguments of transformers' apply_chat_template."""

EMPTY_OBJECT = {"type": "object", "properties": {}}
SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def function(name, description, properties, required=(), **more):
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters, **more}}


WEATHER = function("get_weather", "The weather of a city.", {
    "city": {"type": "string", "description": "Name of the city"},
    "days": {"type": "integer", "description": "How many days", "default": 1}}, ["city"])
SEARCH = function("search", "Searches <b>\"texts\"</b> & 'titles'.", {
    "query": {"type": "string"},
    "limit": {"type": ["integer", "null"], "minimum": 1, "maximum": 2.5},
    "order": {"type": "string", "enum": ["new", "old"], "default": "new"},
    "filters": {"type": "array", "description": "All must hold", "items": {"type": "object", "properties": {
        "field": {"type": "string"}, "exact": {"type": "boolean", "default": False}}, "required": ["field"]}},
    "where": {"anyOf": [{"type": "string"}, {"type": "object", "additionalProperties": {"type": "number"}}]}}, ["query", "filters"])
ACCENTS = function("z\u00e4hle", "Z\u00e4hlt \u2014 \u6570\u3048\u308b \U0001f600", {"was": {"type": "string", "description": "\u00fcberall"}})
BARE = {"type": "function", "function": {"name": "now", "description": "The time.", "parameters": EMPTY_OBJECT}}
RETURNS = function("add", "Adds.", {"a": {"type": "number"}, "b": {"type": "number"}}, ["a", "b"])
RETURNS["function"]["return"] = {"type": "number", "description": "The sum"}


def system(content): return {"role": "system", "content": content}
def user(content): return {"role": "user", "content": content}
def assistant(content, **more): return {"role": "assistant", "content": content, **more}
def text(text): return {"type": "text", "text": text}


def call(name, arguments, id="call00001"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(content, id="call00001", **more):
    return {"role": "tool", "tool_call_id": id, "content": content, **more}


Q, A = user("What is 2+2?"), assistant("It is 4.")
SYS = system("Be brief.")
ONE = assistant("", tool_calls=[call("get_weather", {"city": "Paris", "days": 2})])
TWO = assistant("I look.", tool_calls=[call("get_weather", {"city": "Paris"}), call("get_weather", {"city": "Rome"}, "call00002")])
DEEP = {"s": "a \"b\" <c> & 'd'\n\te\\f", "i": -3, "f": 0.5, "g": 1e-7, "b": True, "n": None, "l": [1, "x", [False]], "o": {"k": {"z": 1, "a": []}}}


def growing():
    """A conversation with calls whose beginnings are the prompts of its turns: (messages, the next turn brings a result)."""
    turns = [user("What is 2+2?"), assistant("It is 4.", reasoning_content="Two and two."), user("And Paris?")]
    for id in ("call00001", "call00002"):
        ask = call("get_weather", {"city": "Paris"}, id)
        turns += [assistant("", reasoning_content="I must ask.", tool_calls=[ask]), result("21", id)]
    turns += [assistant("21 degrees.", reasoning_content="Good."), user("Thanks."), assistant("Bye."), user("Wait.")]
    prompts = [n for n in range(1, len(turns) + 1) if turns[n - 1]["role"] in ("user", "tool")]
    for n, following in zip(prompts, prompts[1:] + [None]):
        yield turns[:n], following is not None and turns[following - 1]["role"] == "tool"


def conversations():
    def case(name, messages, **more):
        more.setdefault("add_generation_prompt", True)
        return name, dict(messages=messages, **more)

    thinker = assistant("It is 4.", reasoning_content="Two and two.")
    yield case("one question", [Q])
    yield case("no generation prompt", [Q], add_generation_prompt=False)
    yield case("system", [SYS, Q])
    yield case("several turns", [SYS, Q, A, user("And 3+3?"), assistant("6."), user("Thanks.")])
    yield case("turns that end with the assistant", [SYS, Q, A, user("And?"), assistant("Done.")], add_generation_prompt=False)
    yield case("prompt after the assistant", [Q, A])
    yield case("developer", [{"role": "developer", "content": "Be brief."}, Q])
    yield case("system and developer", [SYS, {"role": "developer", "content": "Speak French."}, Q])
    yield case("two systems", [SYS, system("Be kind."), Q])
    yield case("late system", [SYS, Q, A, system("Be kind."), user("Go on.")])
    yield case("only system", [SYS])
    yield case("assistant first", [assistant("Hello."), Q])
    yield case("two questions in a row", [Q, user("Well?")])
    yield case("other role", [Q, {"role": "critic", "content": "No."}, user("x")])
    yield case("tools", [Q], tools=[WEATHER])
    yield case("tools and system", [SYS, Q], tools=[WEATHER, SEARCH])
    yield case("tools, more turns", [SYS, Q, A, user("Well?")], tools=[WEATHER])
    yield case("tool without parameters", [Q], tools=[BARE])
    yield case("tool that tells its result", [Q], tools=[RETURNS])
    yield case("tool with accents", [Q], tools=[ACCENTS])
    yield case("tools and developer", [{"role": "developer", "content": "Be brief."}, Q], tools=[WEATHER])
    yield case("call", [Q, ONE], tools=[WEATHER], add_generation_prompt=False)
    yield case("call and result", [SYS, Q, ONE, result("21 degrees")], tools=[WEATHER])
    yield case("result with name", [Q, ONE, result("21 degrees", name="get_weather")], tools=[WEATHER])
    yield case("result as JSON text", [Q, ONE, result('{"t": 21, "sky": "blue"}')], tools=[WEATHER])
    yield case("result as parts", [Q, ONE, result([text("21 "), text("degrees")])], tools=[WEATHER])
    yield case("result as object", [Q, ONE, result({"t": 21.5, "rain": None, "sky": ["blue"]})], tools=[WEATHER])
    yield case("call, result, answer", [Q, ONE, result("21"), assistant("21 degrees.")], tools=[WEATHER], add_generation_prompt=False)
    yield case("call, result, answer, question", [SYS, Q, ONE, result("21"), assistant("21 degrees."), user("Rome?")], tools=[WEATHER])
    yield case("calls without tools", [Q, ONE, result("21"), assistant("21 degrees."), user("Rome?")])
    yield case("two calls", [Q, TWO, result("21"), result("25", "call00002")], tools=[WEATHER])
    yield case("two calls, answer, question", [Q, TWO, result("21"), result("25", "call00002"), assistant("21, 25."), user("x")], tools=[WEATHER])
    yield case("call after call", [Q, ONE, result("21"), ONE, result("22"), assistant("So.")], tools=[WEATHER])
    yield case("call without content", [Q, {k: v for k, v in ONE.items() if k != "content"}, result("21")], tools=[WEATHER])
    yield case("call with null content", [Q, dict(ONE, content=None), result("21")], tools=[WEATHER])
    yield case("call without id", [Q, assistant("", tool_calls=[{"type": "function", "function": {"name": "now", "arguments": {}}}]),
               {"role": "tool", "name": "now", "content": "12:00"}], tools=[BARE])
    yield case("many kinds of arguments", [Q, assistant("", tool_calls=[call("f", DEEP)]), result("ok")], tools=[SEARCH])
    yield case("arguments with accents", [Q, assistant("", tool_calls=[call("z\u00e4hle", {"was": "\u00c4pfel \u2028 \U0001f600"})]), result("\u4e09")],
               tools=[ACCENTS])
    yield case("arguments as text", [Q, assistant("", tool_calls=[call("get_weather", '{"city": "Paris", "days": 2}')]), result("21")],
               tools=[WEATHER])
    yield case("empty list of calls", [Q, assistant("It is 4.", tool_calls=[]), user("x")])
    yield case("reasoning", [Q, thinker, user("Sure?")])
    yield case("reasoning at the end", [Q, thinker], add_generation_prompt=False)
    yield case("reasoning before a call", [Q, dict(ONE, reasoning_content="I must ask."), result("21")], tools=[WEATHER])
    yield case("reasoning, call, answer, question",
               [Q, dict(ONE, reasoning_content="I must ask."), result("21"), assistant("21.", reasoning_content="Now I know."), user("x")],
               tools=[WEATHER])
    yield case("reasoning as `reasoning`", [Q, assistant("It is 4.", reasoning="Two and two."), user("Sure?")])
    yield case("reasoning as `thinking`", [Q, assistant("It is 4.", thinking="Two and two."), user("Sure?")])
    yield case("empty reasoning", [Q, assistant("It is 4.", reasoning_content=""), user("Sure?")])
    yield case("thinking in the text", [Q, assistant("<think>\nTwo and two.\n</think>\n\nIt is 4."), user("Sure?")])
    yield case("thinking off", [SYS, Q, A, user("Well?")], enable_thinking=False)
    yield case("thinking on", [SYS, Q, A, user("Well?")], enable_thinking=True)
    yield case("thinking off with tools", [Q], tools=[WEATHER], enable_thinking=False)
    yield case("thinking off, reasoning before", [Q, thinker, user("Sure?")], enable_thinking=False)
    yield case("effort low", [SYS, Q], reasoning_effort="low", thinking=True)
    yield case("effort high with tools", [SYS, Q], reasoning_effort="high", thinking=False, tools=[WEATHER])
    yield case("parts", [system([text("Be "), text("brief.")]), user([text("What is "), text("2+2?")]), assistant([text("4.")]), user([text("Sure?")])])
    yield case("picture", [user([{"type": "image"}, text("What is this?")])])
    yield case("picture by address", [user([text("What is this?"), {"type": "image_url", "image_url": {"url": "http://127.0.0.1/x.png"}}])])
    yield case("parts as strings", [user(["What is ", "2+2?"])])
    yield case("empty texts", [system(""), user(""), assistant(""), user("")])
    yield case("no content", [{"role": "user"}])
    yield case("null content", [user(None)])
    yield case("spaces around", [system(" \n Be brief.\t\n"), user("  What?\n\n"), assistant("\n 4. \n"), user("\u3000Sure?\u00a0")])
    yield case("accents", [system("Antworte k\u00fcrzer."), user("\u00bfQu\u00e9? \u4f60\u597d \U0001f469\u200d\U0001f52c e\u0301 \u202e"), assistant("\u00c9."), user("\u0130")])
    yield case("marks in texts", [user("<|im_start|>system\n{{ x }} {% y %} [INST] <s> & <b> 'q' \"d\""), A, user("</think> [/INST]")])
    yield case("documents", [Q], documents=[{"title": "Sums", "text": "2+2=4"}, {"title": "More", "text": "3+3=6"}])
    yield case("no documents", [SYS, Q], documents=[])
