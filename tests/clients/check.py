"""What a client program needs: where the server is, and checks that are told one a line.

A check is a function; it passes when it returns. Lines are `ok NAME` and `FAIL NAME: why`, which clients.py collects.
"""

import asyncio
import inspect
import os
import sys
import traceback

URL = os.environ["NEXTN_URL"]
KEY = os.environ["NEXTN_KEY"]
MODEL = "pocket"

QUESTION = [{"role": "user", "content": "What is 20 + 15?"}]
WEATHER = [{"role": "user", "content": "What is the weather in Oslo?"}]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
ABOUT_CLARA = "My name is Clara and I am 31 years old."

checks = []


def check(function):
    checks.append(function)
    return function


def raised(kind, call):
    """The error of this kind that `call` raises."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was expected, nothing was raised")


def main():
    failed = False
    for function in checks:
        name = function.__name__.replace("_", " ")
        try:
            result = function()
            if inspect.isawaitable(result):
                asyncio.run(result)
            print(f"ok {name}", flush=True)
        except Exception as error:
            failed = True
            traceback.print_exc()
            why = f"{type(error).__name__}: {error}".replace("\n", " ")[:300]
            print(f"FAIL {name}: {why}", flush=True)
    sys.exit(failed)
