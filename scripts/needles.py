#!/usr/bin/env python3
"""Questions about facts that are hidden in long texts, in the words of the pocket models' world: what quantized KV caches lose.

  scripts/needles.py OUT.jsonl [--words 30,60,120] [--kinds fact,people,json,call] [--per-kind 20] [--seed 1]
  nextn-bench eval -m MODEL -f OUT.jsonl -d 3 --cache-type-k TYPE --cache-type-v TYPE --kv-rotate on|off

Each question stands behind a text of so many words: stories, and facts of other people. Kinds, by the number of words: a fact of one person
(`fact`), one of several facts of one person among those of others (`people`), fields as JSON from a sentence within the text (`json`),
and a call of a tool with a city that only the text tells (`call`).
"""
import argparse, json, random, sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "models" / "train"))
import generate_corpus as world

TOOL = {"type": "function", "function": {
    "name": "get_weather", "description": "Get the current weather for a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "The name of the city"}}, "required": ["city"]}}}


def facts(rng, name):
    """Sentences about a person, each with a question and what the answer has to hold."""
    city, age = rng.choice(world.CITIES), rng.randint(6, 80)
    pet, job = rng.choice("dog cat rabbit parrot turtle hamster".split()), rng.choice(world.CATEGORIES["jobs"])
    colour, plays = rng.choice(world.CATEGORIES["colours"]), rng.choice(world.CATEGORIES["musical instruments"])
    return [(f"{name} is {age} years old.", f"How old is {name}?", str(age)), (f"{name} lives in {city}.", f"Where does {name} live?", city),
            (f"{name} has a {pet}.", f"What pet does {name} have?", pet), (f"{name} works as {world.an(job)}.", f"What is {name}'s job?", job),
            (f"{name} drives a {colour} car.", f"What colour is {name}'s car?", colour),
            (f"{name} plays the {plays}.", f"Which instrument does {name} play?", plays)]


def filler(rng, n_words, names, people):
    """Sentences of about so many words: of stories, or facts of people who are not asked for."""
    out, n = [], 0
    while n < n_words:
        if people:
            more = [rng.choice(facts(rng, rng.choice(names)))[0]]
        else:
            more = world.story()[0]
        out += more
        n += sum(len(s.split()) for s in more)
    return out


def hidden(rng, sentences, text):
    """The text with sentences at a place of its own each."""
    for s in sentences:
        text.insert(rng.randint(0, len(text)), s)
    return " ".join(text)


def question(rng, kind, n_words):
    name, *others = rng.sample(world.NAMES, len(world.NAMES))
    of = facts(rng, name)
    told = rng.sample(of, 3) if kind == "people" else [rng.choice(of)]
    fact, asked, answer = told[0]
    line = {"kind": f"{kind} {n_words}", "match": "contains", "answer": answer}
    text = filler(rng, n_words, others, kind in ("people", "call"))
    if kind == "json":
        surname, age, city = rng.choice(world.SURNAMES), rng.randint(18, 80), rng.choice(world.CITIES)
        text = hidden(rng, [f"{name} {surname} is {age} years old and lives in {city}."], text)
        return line | {"match": "json", "answer": {"name": f"{name} {surname}", "age": age, "city": city},
                       "prompt": f"{text}\n\nReturn a JSON object with the keys name, age, city."}
    if kind == "call":
        _, _, city = of[1]
        text = hidden(rng, [f"{name} lives in {city}."], text)
        return line | {"match": "call", "answer": {"name": "get_weather", "arguments": {"city": city}}, "tools": [TOOL],
                       "prompt": f"{text}\n\nWhat is the weather in {city}?"}
    text = hidden(rng, [s for s, _, _ in told], text)
    return line | {"prompt": f"Read the text and answer.\n\n{text}\n\nQuestion: {asked}"}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out", type=Path)
    p.add_argument("--words", default="30,60,120")
    p.add_argument("--kinds", default="fact,people,json,call")
    p.add_argument("--per-kind", type=int, default=20)
    p.add_argument("--seed", type=int, default=1)
    args = p.parse_args()
    world.r = rng = random.Random(args.seed)
    lines = [question(rng, kind, int(n)) for kind in args.kinds.split(",") for n in args.words.split(",") for _ in range(args.per_kind)]
    args.out.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    print(f"{args.out}: {len(lines)} questions")


if __name__ == "__main__":
    main()
