"""Reads the cases of llama.cpp's tests/test-chat.cpp: chains like `tst.test(REPLY).tools({..}).expect(..).run()`.

Owns a small reader of C++: string literals, braces, calls of the file's own message makers. What it cannot evaluate is counted.
"""
import re

TOKEN = re.compile(
    r'(?P<space>\s+|//[^\n]*|/\*.*?\*/)'
    r'|(?P<raw>R"(?P<fence>[^\s()\\]*)\((?P<inner>.*?)\)(?P=fence)")'
    r'|(?P<text>"(?:[^"\\]|\\.)*")'
    r"|(?P<char>'(?:[^'\\]|\\.)*')"
    r'|(?P<word>[A-Za-z_][A-Za-z0-9_]*)'
    r'|(?P<number>[0-9][0-9a-zA-Z.]*)'
    r'|(?P<mark>::|->|<<|.)', re.S)
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\", '"': '"', "'": "'", "b": "\b", "f": "\f"}


class Unknown(Exception):
    """Something that this reader does not evaluate."""


def unescaped(literal):
    """The text of a literal; escapes of bytes and of characters both occur."""
    out, i = bytearray(), 0
    while i < len(literal):
        if literal[i] != "\\":
            out += literal[i].encode()
            i += 1
            continue
        kind = literal[i + 1]
        if kind == "x":
            digits = re.match(r"[0-9a-fA-F]{1,2}", literal[i + 2:]).group()
            out.append(int(digits, 16))
            i += 2 + len(digits)
        elif kind in "uU":
            n = 4 if kind == "u" else 8
            out += chr(int(literal[i + 2:i + 2 + n], 16)).encode()
            i += 2 + n
        else:
            out += ESCAPES.get(kind, kind).encode()
            i += 2
    return out.decode("utf-8", "replace")


def tokens(source):
    """(kind, value, line) of everything but comments and spaces."""
    line = 1
    for match in TOKEN.finditer(source):
        kind, value = match.lastgroup, match.group()
        if match.group("raw") is not None:
            yield "text", match.group("inner"), line
        elif kind == "text":
            yield "text", unescaped(value[1:-1]), line
        elif kind != "space":
            yield kind, value, line
        line += value.count("\n")


def message(content="", reasoning="", tool="", arguments="", call_id=""):
    calls = [[tool, arguments, call_id]] if tool or call_id else []
    return {"role": "assistant", "content": content, "reasoning": reasoning, "calls": calls}


MAKERS = {
    "simple_assist_msg": message,
    "message_with_tool_calls": lambda name, arguments: message("", "", name, arguments),
    "message_with_tool_calls_and_reasoning": lambda name, arguments, reasoning: message("", reasoning, name, arguments),
    "message_with_content_and_tool_call": lambda content, name, arguments: message(content, "", name, arguments),
    "message_with_reasoning_and_tool_call": lambda reasoning, name, arguments: message("", reasoning, name, arguments),
    "message_with_reasoning_content_and_multiple_tool_calls":
        lambda reasoning, content, calls: {**message(content, reasoning), "calls": [[n, a, ""] for n, a in calls]},
}
FIELDS = {"role": "role", "content": "content", "reasoning_content": "reasoning", "tool_calls": "calls"}


class Reader:
    """Walks the tokens once; variables hold texts, messages, tools, or a list of what a loop gives them."""

    def __init__(self, source):
        self.t = list(tokens(source))
        self.i = 0
        self.names = {}
        self.testers = {}
        self.cases = []
        self.unread = []

    def at(self, *values):
        return [v for _, v, _ in self.t[self.i:self.i + len(values)]] == list(values)

    def take(self, value):
        if not self.at(value) or self.t[self.i][0] == "text":
            raise Unknown(f"{value} expected, {self.t[self.i][1]!r} found")
        self.i += 1

    def value(self):
        """TERM (+ TERM)*"""
        value = self.term()
        while self.at("+") and self.t[self.i][0] == "mark":
            self.i += 1
            value = value + self.term()
        return value

    def term(self):
        kind, value, _ = self.t[self.i]
        if kind == "text":
            text = ""
            while self.t[self.i][0] == "text":
                text += self.t[self.i][1]
                self.i += 1
            return text
        if value == "{":
            return self.items("{", "}")
        if kind == "number":
            self.i += 1
            return int(value)
        if kind != "word":
            raise Unknown(value)
        name = value
        self.i += 1
        while self.at("::"):
            self.i += 1
            name = self.t[self.i][1]
            self.i += 1
        if self.at("("):
            arguments = self.items("(", ")")
            if name == "string":
                return arguments[0]
            if name in MAKERS:
                return MAKERS[name](*arguments)
            raise Unknown(name + "()")
        if self.at("{"):
            return self.items("{", "}")
        if name in ("true", "false"):
            return name == "true"
        if name.isupper():
            return name
        if name in self.names:
            return self.names[name]
        raise Unknown(name)

    def items(self, open, close):
        self.take(open)
        items = []
        while not self.at(close) or self.t[self.i][0] == "text":
            items.append(self.value())
            if self.at(","):
                self.i += 1
        self.take(close)
        return items

    def read(self):
        self.functions()
        while self.i < len(self.t):
            start = self.i
            try:
                if not self.statement():
                    self.i = start + 1
            except (Unknown, IndexError, TypeError, ValueError) as error:
                if self.is_case(start):
                    self.unread.append((self.t[start][2], str(error)))
                self.i = start + 1
        return self

    def functions(self):
        """The texts that loops hand to functions which take a template's path."""
        paths, lists = {}, {}
        for i, (_, value, _) in enumerate(self.t):
            if value == "for" and (at := self.loop(i)):
                lists[at[0]] = at[1]
            if i > 1 and value == "(" and self.t[i + 1][1] in lists and self.t[i - 1][0] == "word":
                paths.setdefault(self.t[i - 1][1], lists[self.t[i + 1][1]])
        for i, (_, value, _) in enumerate(self.t):
            if value in paths and self.t[i - 1][1] == "void":
                close = next(j for j in range(i, len(self.t)) if self.t[j][1] in (")", ","))
                self.names[self.t[close - 1][1]] = paths[value]

    def loop(self, i):
        """`for (.. NAME : { TEXT, .. })`: the name and the texts."""
        for j in range(i, i + 8):
            if self.t[j][1] == ":" and self.t[j + 1][1] == "{":
                saved, self.i = self.i, j + 1
                try:
                    return self.t[j - 1][1], self.items("{", "}")
                except Unknown:
                    return None
                finally:
                    self.i = saved
        return None

    def is_case(self, i):
        return self.t[i][1] in self.testers and [t[1] for t in self.t[i + 1:i + 4]] == [".", "test", "("]

    def statement(self):
        kind, word, line = self.t[self.i]
        if word == "for" and (found := self.loop(self.i)):
            self.names[found[0]] = found[1]
            return False
        if self.is_case(self.i):
            self.case(line, self.testers[word])
            return True
        following = [t[1] for t in self.t[self.i + 1:self.i + 3]]
        if kind == "word" and following == ["=", "peg_tester"]:
            self.i += 3
            paths = self.items("(", ")") if self.at("(", "tmpl", ")") else self.tester()
            self.testers[word] = paths
            return True
        if kind == "word" and following[:1] == ["{"] and self.t[self.i - 1][1] == "common_chat_tool":
            self.i += 1
            name, description, schema = self.items("{", "}")
            self.names[word] = {"name": name, "description": description, "parameters": schema}
            return True
        if kind == "word" and following[:1] == ["="] and self.t[self.i - 1][1] in ("common_chat_msg", "string", "*", "tools", ">"):
            self.i += 2
            self.names[word] = self.value()
            return True
        if kind == "word" and self.t[self.i - 1][1] == "common_chat_msg" and following[:1] in (["{"], [";"]):
            self.i += 1
            self.names[word] = dict(message(), role="")
            if self.at("{"):
                role, content = self.items("{", "}")[:2]
                self.names[word].update(role=role, content=content)
            return True
        if kind == "word" and isinstance(self.names.get(word), dict) and following[0] == "." and following[1] in FIELDS:
            self.i += 3
            if self.at("="):
                self.i += 1
                self.names[word] = {**self.names[word], FIELDS[following[1]]: self.value()}
            return True
        return False

    def tester(self):
        self.take("(")
        path = self.value()
        while not self.at(")"):
            self.i += 1
        self.take(")")
        return path if isinstance(path, list) else [path]

    def case(self, line, paths):
        self.i += 3
        case = {"line": line, "reply": self.items("(", ")")[0], "tools": [], "partial": False, "messages": [],
                "enable_thinking": True, "add_generation_prompt": True, "reasoning_format": "COMMON_REASONING_FORMAT_NONE",
                "expect": message()}
        while self.at("."):
            method = self.t[self.i + 1][1]
            self.i += 2
            arguments = self.items("(", ")")
            if method == "run":
                self.cases += [{**case, "template": path.rsplit("/", 1)[1]} for path in paths]
                return
            self.option(case, method, arguments)
        raise Unknown("a chain without .run()")

    def option(self, case, method, arguments):
        first = arguments[0] if arguments else None
        if method == "expect":
            case["expect"] = first
        elif method in ("expect_content", "expect_reasoning"):
            case["expect"] = {**case["expect"], method.removeprefix("expect_").replace("reasoning_content", "reasoning"): first}
        elif method == "expect_tool_calls":
            calls = [(list(call) + [""] * 3)[:3] for call in first]
            case["expect"] = {**case["expect"], "calls": calls}
        elif method == "is_partial":
            case["partial"] = first
        elif method == "tools":
            case["tools"] = [t if isinstance(t, dict) else dict(zip(("name", "description", "parameters"), t)) for t in first]
        elif method in ("messages", "enable_thinking", "add_generation_prompt", "reasoning_format", "parallel_tool_calls",
                        "continue_final_message", "json_schema", "tool_choice"):
            case[method] = first
        elif method != "expect_reconstruction":
            raise Unknown(f".{method}()")


def cases_of(path):
    """(the cases, what could not be read as (line, why))"""
    with open(path, encoding="utf-8") as file:
        reader = Reader(file.read()).read()
    return reader.cases, reader.unread
