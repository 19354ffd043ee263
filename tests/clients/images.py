"""Images by the packages `openai`, `anthropic`, `ollama` and `langchain`: the model is blind to what they show, but every client's
picture must be the same prompt, and another than without it."""

import base64
import struct
import zlib

import anthropic
import ollama
import openai
from check import KEY, MODEL, URL, check, main, raised
from langchain_core.messages import HumanMessage
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI

QUESTION = "What is this?"
OFF = {"chat_template_kwargs": {"enable_thinking": False}}
HEADERS = {"Authorization": f"Bearer {KEY}"}


def png(width, height):
    rows = b"".join(b"\0" + bytes((x * 5 + y * k) % 256 for x in range(width) for k in range(3)) for y in range(height))
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


PICTURE = png(32, 48)
ENCODED = base64.b64encode(PICTURE).decode()
DATA = f"data:image/png;base64,{ENCODED}"
# Of 8 x 8 pixels, and the tokens that begin and end the picture.
N_ROWS = 24 + 2

client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)


def asked(content):
    return client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": content}], temperature=0, max_tokens=12, extra_body=OFF)


PARTS = [{"type": "image_url", "image_url": {"url": DATA}}, {"type": "text", "text": QUESTION}]
TEXT = asked(PARTS).choices[0].message.content
N_PROMPT = asked(QUESTION).usage.prompt_tokens + N_ROWS


@check
def openai_chat():
    answer = asked(PARTS)
    assert answer.usage.prompt_tokens == N_PROMPT, answer.usage
    assert answer.choices[0].message.content == TEXT != asked(QUESTION).choices[0].message.content
    assert answer.usage.prompt_tokens_details.cached_tokens > N_ROWS


@check
def openai_responses():
    content = [{"type": "input_image", "image_url": DATA, "detail": "auto"}, {"type": "input_text", "text": QUESTION}]
    response = client.responses.create(
        model=MODEL, input=[{"role": "user", "content": content}], temperature=0, max_output_tokens=12, reasoning={"effort": "none"}
    )
    assert response.output_text == TEXT and response.usage.input_tokens == N_PROMPT, response


@check
def openai_errors():
    error = raised(openai.BadRequestError, lambda: asked([{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]))
    assert "--allow-image-urls" in str(error)
    error = raised(openai.BadRequestError, lambda: asked([{"type": "image_url", "image_url": {"url": DATA[:60]}}]))
    assert "image" in str(error)


@check
def anthropic_messages():
    claude = anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0)
    source = {"type": "base64", "media_type": "image/png", "data": ENCODED}
    message = {"role": "user", "content": [{"type": "image", "source": source}, {"type": "text", "text": QUESTION}]}
    answer = claude.messages.create(model=MODEL, messages=[message], max_tokens=12, extra_body={"temperature": 0})
    assert answer.content[0].text == TEXT, answer
    assert answer.usage.input_tokens + answer.usage.cache_read_input_tokens == N_PROMPT
    assert claude.messages.count_tokens(model=MODEL, messages=[message]).input_tokens == N_PROMPT


@check
def ollama_chat_and_generate():
    host = ollama.Client(host=URL, headers=HEADERS)
    options = {"temperature": 0, "num_predict": 12}
    assert "vision" in host.show(MODEL).capabilities
    chat = host.chat(MODEL, [{"role": "user", "content": QUESTION, "images": [PICTURE]}], think=False, options=options)
    assert chat.message.content == TEXT and chat.prompt_eval_count == N_PROMPT, chat
    generated = host.generate(MODEL, QUESTION, images=[PICTURE], think=False, options=options)
    assert generated.response == TEXT, generated


@check
def langchain():
    message = HumanMessage(content=[{"type": "image", "base64": ENCODED, "mime_type": "image/png"}, {"type": "text", "text": QUESTION}])
    by_openai = ChatOpenAI(base_url=f"{URL}/v1", model=MODEL, api_key=KEY, temperature=0, max_tokens=12, max_retries=0, extra_body=OFF)
    assert by_openai.invoke([message]).content == TEXT
    by_ollama = ChatOllama(base_url=URL, model=MODEL, client_kwargs={"headers": HEADERS}, temperature=0, num_predict=12, reasoning=False)
    message = HumanMessage(content=[{"type": "image_url", "image_url": DATA}, {"type": "text", "text": QUESTION}])
    answer = by_ollama.invoke([message])
    # This package puts a line break before the text.
    assert answer.content and answer.usage_metadata["input_tokens"] == N_PROMPT + 1, answer


if __name__ == "__main__":
    main()
