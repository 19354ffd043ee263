"""Ten turns with thinking, alone and two conversations in turns on one sequence: what is computed against what is new.

turns.py; standard library only. New in a turn is what its prompt has beyond the prompt before it, whose opening of the
thinking is not repeated. Ends with 1 when more than 5 % is computed twice.
"""

import json
import sys
import urllib.request

from server import Server


def post(url, path, body):
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def tokens(url, text):
    return post(url, "/tokenize", {"content": text})["tokens"]


def converse(url, n_conversations, n_turns=10):
    talks = [([{"role": "system", "content": f"You are helpful assistant number {i}."}], []) for i in range(n_conversations)]
    computed = new = 0
    for turn in range(n_turns):
        for messages, before in talks:
            messages.append({"role": "user", "content": f"What is {10 + turn} + {20 + 2 * turn}?"})
            prompt = tokens(url, post(url, "/apply-template", {"messages": messages})["prompt"])
            answer = post(url, "/v1/chat/completions", {"messages": messages, "temperature": 0, "max_tokens": 100})
            message = answer["choices"][0]["message"]
            assert message["reasoning_content"], "it is to think"
            assert answer["usage"]["prompt_tokens"] == len(prompt)
            same = next((i for i, (a, b) in enumerate(zip(before, prompt)) if a != b), min(len(before), len(prompt)))
            new += len(prompt) - same
            computed += answer["timings"]["prompt_n"]
            before[:] = prompt
            messages.append({"role": "assistant", "content": message["content"]})
    return computed, new


def main():
    failed = False
    for name, n, options in [("one conversation", 1, []), ("two in turns on one sequence", 2, []),
                             ("two on two sequences", 2, ["-np", "2"])]:
        with Server("-t", "1", "-c", "2048", "-np", "1", *options) as server:
            computed, new = converse(server.url, n)
        more = 100 * (computed / new - 1)
        print(f"{name}: {computed} tokens computed, {new} new, {more:+.1f} %")
        failed |= more > 5
    sys.exit(failed)


if __name__ == "__main__":
    main()
