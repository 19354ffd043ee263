//! What the tests share: families with small templates of ours and vocabularies, and readers and writers of replies.

use std::sync::{Arc, OnceLock};

use constrain::{Compiler, Error, Kind, Limits, Spec};
use engine::Grammar;
use serde_json::{Map, Value, json};
use session::dialect::{Dialect, ReplyEvent, ReplyOptions, Thinking, Tool, ToolChoice, ToolSchema, Tools};
use test_support::Random;
use text::template::{Chat, ChatTemplate};
use text::{Special, Vocab};

use super::vocab::vocab_of;

/// One form of calls: a family, how its template writes an assistant's calls, and its special tokens.
pub struct World {
    pub name: &'static str,
    pub template: String,
    pub vocab: Arc<Vocab>,
    pub dialect: Dialect,
    compiler: OnceLock<Compiler>,
}

/// The worlds, by names that begin with the name of the family.
pub fn worlds() -> &'static [World] {
    static WORLDS: OnceLock<Vec<World>> = OnceLock::new();
    WORLDS.get_or_init(|| FORMS.iter().map(|(name, calls, tokens)| World::new(name, calls, tokens)).collect())
}

pub fn world(name: &str) -> &'static World {
    worlds().iter().find(|world| world.name == name).expect("a name of `FORMS`")
}

/// A form: its name, the part of a template that writes `m.tool_calls`, and the control and user-defined tokens.
type Row = (&'static str, &'static str, &'static [(&'static str, i32)]);

const FORMS: &[Row] = &[
    ("qwen", QWEN, &[]),
    ("qwen json", HERMES_THINKS, &[]),
    ("hermes", HERMES, &[]),
    ("llama3", LLAMA3, &[("<|python_tag|>", 3), ("<|start_header_id|>", 3)]),
    ("mistral list", MISTRAL_LIST, &[("[TOOL_CALLS]", 3), ("[THINK]", 3), ("[/THINK]", 3)]),
    ("mistral", MISTRAL, &[("[TOOL_CALLS]", 3), ("[ARGS]", 3), ("[THINK]", 3), ("[/THINK]", 3)]),
    ("mistral id", MISTRAL_ID, &[("[TOOL_CALLS]", 3), ("[ARGS]", 3), ("[CALL_ID]", 3)]),
    ("mistral text", MISTRAL, &[]),
    // Values in JSON may hold what looks like tags: a token for one would draw it often.
    ("glm lines", GLM_LINES, &[("<think>", 4), ("</think>", 4)]),
    ("glm", GLM, &[("<tool_call>", 4), ("</tool_call>", 4), ("<think>", 4), ("</think>", 4)]),
    ("gemma", GEMMA, &[("<|tool_call>", 3), ("<tool_call|>", 3), ("<|\"|>", 3), ("<|channel>", 3), ("<channel|>", 3)]),
    ("gemma text", GEMMA, &[("<|channel>", 3), ("<channel|>", 3)]),
    ("deepseek", DEEPSEEK, DEEPSEEK_TOKENS),
    ("deepseek fence", DEEPSEEK_FENCE, DEEPSEEK_TOKENS),
    ("dsml", DSML, &[("｜DSML｜", 4), ("<think>", 4), ("</think>", 4)]),
    ("dsml calls", DSML_CALLS, &[]),
    ("kimi", KIMI, KIMI_TOKENS),
    ("kimi3", KIMI_K3, &[("<|open|>", 3), ("<|close|>", 3), ("<|sep|>", 3)]),
    ("minimax", MINIMAX, &[("<minimax:tool_call>", 4), ("</minimax:tool_call>", 4)]),
    ("seed", SEED, &[("<seed:think>", 4), ("</seed:think>", 4)]),
    ("harmony", HARMONY, HARMONY_TOKENS),
    ("lfm2", LFM2, &[("<|tool_call_start|>", 3), ("<|tool_call_end|>", 3)]),
    ("command", COMMAND, &[("<|START_ACTION|>", 3), ("<|END_ACTION|>", 3)]),
    ("command+", COMMAND_PLUS, &[]),
    ("nemotron", NEMOTRON, &[("<TOOLCALL>", 3), ("</TOOLCALL>", 3)]),
    ("apriel", APRIEL, &[]),
    ("apertus", APERTUS, &[("<|tools_prefix|>", 3), ("<|tools_suffix|>", 3)]),
    ("gigachat", GIGACHAT, &[("<|function_call|>", 3)]),
    ("granite", GRANITE, &[("<|tool_call|>", 3)]),
    ("granite closed", GRANITE_CLOSED, &[("<|tool_call|>", 3), ("<|/tool_call|>", 3)]),
    ("minimax1", MINIMAX_M1, &[]),
    ("firefunction", FIREFUNCTION, &[]),
    ("functionary", FUNCTIONARY, &[]),
    ("minicpm", MINICPM, &[]),
];

const QWEN: &str = r"{%- for c in m.tool_calls or [] -%}
    {{- '\n<tool_call>\n<function=' + c.function.name + '>\n' -}}
    {%- for k, v in c.function.arguments|items -%}
        {{- '<parameter=' + k + '>\n' + (v if v is string else v|tojson) + '\n</parameter>\n' -}}
    {%- endfor -%}
    {{- '</function>\n</tool_call>' -}}
{%- endfor -%}";
const HERMES: &str = r#"{%- for c in m.tool_calls or [] -%}
    {{- '\n<tool_call>\n{"name": "' + c.function.name + '", "arguments": ' + c.function.arguments|tojson + '}\n</tool_call>' -}}
{%- endfor -%}"#;
const HERMES_THINKS: &str = r#"{%- for c in m.tool_calls or [] -%}
    {{- '\n<tool_call>\n{"name": "' + c.function.name + '", "arguments": ' + c.function.arguments|tojson + '}\n</tool_call>' -}}
{%- endfor -%}{#- <think> -#}"#;
const LLAMA3: &str = r#"{#- <|start_header_id|> -#}{%- for c in m.tool_calls or [] -%}
    {{- '{"name": "' + c.function.name + '", ' + '"parameters": ' + c.function.arguments|tojson + '}' -}}
{%- endfor -%}"#;
const MISTRAL_LIST: &str = r#"{%- if m.tool_calls -%}{{- '[TOOL_CALLS][' -}}{%- for c in m.tool_calls -%}
    {{- '{"name": "' + c.function.name + '", "arguments": ' + c.function.arguments|tojson + ', "id": "abcdefgh1"}' -}}
    {%- if not loop.last -%}{{- ', ' -}}{%- endif -%}
{%- endfor -%}{{- ']' -}}{%- endif -%}"#;
const MISTRAL: &str = r"{%- for c in m.tool_calls or [] -%}
    {{- '[TOOL_CALLS]' + c.function.name + '[ARGS]' + c.function.arguments|tojson -}}
{%- endfor -%}{#- [THINK] [/THINK] -#}";
const MISTRAL_ID: &str = r"{%- for c in m.tool_calls or [] -%}
    {{- '[TOOL_CALLS]' + c.function.name + '[CALL_ID]abcdefgh1[ARGS]' + c.function.arguments|tojson -}}
{%- endfor -%}";
const GLM_LINES: &str = r"{%- for c in m.tool_calls or [] -%}
    {{- '\n<tool_call>' + c.function.name + '\n' -}}
    {%- for k, v in c.function.arguments|items %}<arg_key>{{ k }}</arg_key>
<arg_value>{{ v if v is string else v|tojson }}</arg_value>
{% endfor -%}
    {{- '</tool_call>' -}}
{%- endfor -%}";
const GLM: &str = r"{%- for c in m.tool_calls or [] -%}
    {{- '<tool_call>' + c.function.name -}}
    {%- for k, v in c.function.arguments|items -%}
        <arg_key>{{ k }}</arg_key><arg_value>{{ v if v is string else v|tojson }}</arg_value>
    {%- endfor -%}
    {{- '</tool_call>' -}}
{%- endfor -%}";
const GEMMA: &str = r#"{%- macro value(v) -%}
    {%- if v is string -%}{{- '<|"|>' + v + '<|"|>' -}}
    {%- elif v is mapping -%}{{- '{' -}}{%- for k, x in v|dictsort -%}
        {%- if not loop.first -%},{%- endif -%}{{- k -}}:{{- value(x) -}}
    {%- endfor -%}{{- '}' -}}
    {%- elif v is sequence -%}{{- '[' -}}{%- for x in v -%}
        {%- if not loop.first -%},{%- endif -%}{{- value(x) -}}
    {%- endfor -%}{{- ']' -}}
    {%- else -%}{{- v|tojson -}}{%- endif -%}
{%- endmacro -%}
{%- for c in m.tool_calls or [] -%}
    {{- '<|tool_call>call:' + c.function.name + value(c.function.arguments) + '<tool_call|>' -}}
{%- endfor -%}"#;
const DEEPSEEK_TOKENS: &[(&str, i32)] = &[
    ("<｜tool▁calls▁begin｜>", 3),
    ("<｜tool▁call▁begin｜>", 3),
    ("<｜tool▁sep｜>", 3),
    ("<｜tool▁call▁end｜>", 3),
    ("<｜tool▁calls▁end｜>", 3),
    ("<think>", 4),
    ("</think>", 4),
];
const DEEPSEEK: &str = r"{%- if m.tool_calls -%}{{- '<｜tool▁calls▁begin｜>' -}}{%- for c in m.tool_calls -%}
    {{- '<｜tool▁call▁begin｜>' + c.function.name + '<｜tool▁sep｜>' + c.function.arguments|tojson + '<｜tool▁call▁end｜>' -}}
{%- endfor -%}{{- '<｜tool▁calls▁end｜>' -}}{%- endif -%}";
const DEEPSEEK_FENCE: &str = r"{%- if m.tool_calls -%}{{- '<｜tool▁calls▁begin｜>' -}}{%- for c in m.tool_calls -%}
    {%- if not loop.first -%}{{- '\n' -}}{%- endif -%}
    {{- '<｜tool▁call▁begin｜>function<｜tool▁sep｜>' + c.function.name + '\n```json\n' -}}
    {{- c.function.arguments|tojson + '\n```<｜tool▁call▁end｜>' -}}
{%- endfor -%}{{- '<｜tool▁calls▁end｜>' -}}{%- endif -%}";

const DSML: &str = r#"{%- if m.tool_calls -%}{{- '\n\n<｜DSML｜function_calls>' -}}{%- for c in m.tool_calls -%}
    {{- '\n<｜DSML｜invoke name="' + c.function.name + '">\n' -}}
    {%- for k, v in c.function.arguments|items -%}
        {{- '<｜DSML｜parameter name="' + k + '" string="' + ('true' if v is string else 'false') + '">' -}}
        {{- (v if v is string else v|tojson) + '</｜DSML｜parameter>\n' -}}
    {%- endfor -%}
    {{- '</｜DSML｜invoke>' -}}
{%- endfor -%}{{- '\n</｜DSML｜function_calls>' -}}{%- endif -%}"#;
const DSML_CALLS: &str = r#"{%- if m.tool_calls -%}{{- '\n\n<｜DSML｜tool_calls>' -}}{%- for c in m.tool_calls -%}
    {{- '\n<｜DSML｜invoke name="' + c.function.name + '">\n' -}}
    {%- for k, v in c.function.arguments|items -%}
        {{- '<｜DSML｜parameter name="' + k + '" string="' + ('true' if v is string else 'false') + '">' -}}
        {{- (v if v is string else v|tojson) + '</｜DSML｜parameter>\n' -}}
    {%- endfor -%}
    {{- '</｜DSML｜invoke>' -}}
{%- endfor -%}{{- '\n</｜DSML｜tool_calls>' -}}{%- endif -%}"#;
const KIMI_TOKENS: &[(&str, i32)] = &[
    ("<|tool_calls_section_begin|>", 3),
    ("<|tool_call_begin|>", 3),
    ("<|tool_call_argument_begin|>", 3),
    ("<|tool_call_end|>", 3),
    ("<|tool_calls_section_end|>", 3),
    ("<think>", 4),
    ("</think>", 4),
];
const KIMI: &str = r"{%- if m.tool_calls -%}{{- '<|tool_calls_section_begin|>' -}}{%- for c in m.tool_calls -%}
    {{- '<|tool_call_begin|>functions.' + c.function.name + ':' ~ loop.index0 -}}
    {{- '<|tool_call_argument_begin|>' + c.function.arguments|tojson + '<|tool_call_end|>' -}}
{%- endfor -%}{{- '<|tool_calls_section_end|>' -}}{%- endif -%}";
const KIMI_K3: &str = r#"{%- if m.tool_calls -%}{{- '<|open|>tools<|sep|>' -}}{%- for c in m.tool_calls -%}
    {{- '<|open|>call tool="' + c.function.name + '" index="' ~ loop.index + '"<|sep|>' -}}
    {%- for k, v in c.function.arguments|items -%}
        {{- '<|open|>argument key="' + k + '" type="' -}}
        {{- 'string' if v is string else ('null' if v is none else 'number') -}}
        {{- '"<|sep|>' + (v if v is string else v|tojson) + '<|close|>argument<|sep|>' -}}
    {%- endfor -%}
    {{- '<|close|>call<|sep|>' -}}
{%- endfor -%}{{- '<|close|>tools<|sep|>' -}}{%- endif -%}{#- 'think' -#}"#;
const MINIMAX: &str = r#"{%- if m.tool_calls -%}{{- '\n<minimax:tool_call>' -}}{%- for c in m.tool_calls -%}
    {{- '\n<invoke name="' + c.function.name + '">\n' -}}
    {%- for k, v in c.function.arguments|items -%}
        {{- '<parameter name="' + k + '">' + (v if v is string else v|tojson) + '</parameter>\n' -}}
    {%- endfor -%}
    {{- '</invoke>' -}}
{%- endfor -%}{{- '\n</minimax:tool_call>' -}}{%- endif -%}{#- </think> -#}"#;
const SEED: &str = r"{%- for c in m.tool_calls or [] -%}
    {{- '\n<seed:tool_call>\n<function=' + c.function.name + '>\n' -}}
    {%- for k, v in c.function.arguments|items -%}
        {{- '<parameter=' + k + '>' + (v if v is string else v|tojson) + '</parameter>\n' -}}
    {%- endfor -%}
    {{- '</function>\n</seed:tool_call>' -}}
{%- endfor -%}{#- </seed:think> -#}";
const HARMONY_TOKENS: &[(&str, i32)] =
    &[("<|channel|>", 3), ("<|message|>", 3), ("<|start|>", 3), ("<|end|>", 3), ("<|constrain|>", 3), ("<|call|>", 3)];
const HARMONY: &str = r"{%- for c in m.tool_calls or [] -%}
    {{- '<|channel|>commentary to=functions.' + c.function.name + ' <|constrain|>json<|message|>' -}}
    {{- c.function.arguments|tojson -}}
{%- endfor -%}{#- <|channel|>analysis<|message|> -#}";
const LFM2: &str = r"{%- if m.tool_calls -%}{{- '<|tool_call_start|>[' -}}{%- for c in m.tool_calls -%}
    {{- c.function.name + '(' -}}
    {%- for k, v in c.function.arguments|items -%}
        {{- k + '=' + v|tojson -}}{%- if not loop.last -%}{{- ', ' -}}{%- endif -%}
    {%- endfor -%}
    {{- ')' -}}{%- if not loop.last -%}{{- ', ' -}}{%- endif -%}
{%- endfor -%}{{- ']<|tool_call_end|>' -}}{%- endif -%}";
const COMMAND: &str = r#"{%- if m.tool_calls -%}{{- '<|START_ACTION|>[\n' -}}{%- for c in m.tool_calls -%}
    {{- '    {"tool_call_id": "' ~ loop.index0 + '", "tool_name": "' + c.function.name -}}
    {{- '", "parameters": ' + c.function.arguments|tojson + '}' -}}{%- if not loop.last -%}{{- ',\n' -}}{%- endif -%}
{%- endfor -%}{{- '\n]<|END_ACTION|>' -}}{%- endif -%}{#- <|END_THINKING|> -#}"#;
const COMMAND_PLUS: &str = r#"{%- if m.tool_calls -%}{{- 'Action:\n```json\n[' -}}{%- for c in m.tool_calls -%}
    {{- '{"tool_name": "' + c.function.name + '", "parameters": ' + c.function.arguments|tojson + '}' -}}
    {%- if not loop.last -%}{{- ', ' -}}{%- endif -%}
{%- endfor -%}{{- ']\n```' -}}{%- endif -%}{#- <|CHATBOT_TOKEN|> -#}"#;
const NEMOTRON: &str = r#"{%- if m.tool_calls -%}{{- '<TOOLCALL>[' -}}{%- for c in m.tool_calls -%}
    {{- '{"name": "' + c.function.name + '", "arguments": ' + c.function.arguments|tojson + '}' -}}
    {%- if not loop.last -%}{{- ', ' -}}{%- endif -%}
{%- endfor -%}{{- ']</TOOLCALL>' -}}{%- endif -%}"#;
const APRIEL: &str = r#"{%- if m.tool_calls -%}{{- '<tool_calls>[' -}}{%- for c in m.tool_calls -%}
    {{- '{"name": "' + c.function.name + '", "arguments": ' + c.function.arguments|tojson + '}' -}}
    {%- if not loop.last -%}{{- ', ' -}}{%- endif -%}
{%- endfor -%}{{- ']</tool_calls>' -}}{%- endif -%}"#;
const APERTUS: &str = r#"{%- if m.tool_calls -%}{{- '<|tools_prefix|>[' -}}{%- for c in m.tool_calls -%}
    {{- '{"' + c.function.name + '": ' + c.function.arguments|tojson + '}' -}}
    {%- if not loop.last -%}{{- ', ' -}}{%- endif -%}
{%- endfor -%}{{- ']<|tools_suffix|>' -}}{%- endif -%}"#;
const GIGACHAT: &str = r#"{%- for c in m.tool_calls or [] -%}
    {{- '<|function_call|>{"name": "' + c.function.name + '", "arguments": ' + c.function.arguments|tojson + '}' -}}
{%- endfor -%}"#;
const GRANITE: &str = r#"{%- if m.tool_calls -%}{{- '<|tool_call|>[' -}}{%- for c in m.tool_calls -%}
    {{- '{"name": "' + c.function.name + '", "arguments": ' + c.function.arguments|tojson + '}' -}}
    {%- if not loop.last -%}{{- ', ' -}}{%- endif -%}
{%- endfor -%}{{- ']' -}}{%- endif -%}"#;
const GRANITE_CLOSED: &str = r#"{%- if m.tool_calls -%}{{- '<|tool_call|>[' -}}{%- for c in m.tool_calls -%}
    {{- '{"name": "' + c.function.name + '", "arguments": ' + c.function.arguments|tojson + '}' -}}
    {%- if not loop.last -%}{{- ', ' -}}{%- endif -%}
{%- endfor -%}{{- ']<|/tool_call|>' -}}{%- endif -%}"#;
const MINIMAX_M1: &str = r#"{%- if m.tool_calls -%}{{- '<tool_calls>\n' -}}{%- for c in m.tool_calls -%}
    {{- '{"name": "' + c.function.name + '", "arguments": ' + c.function.arguments|tojson + '}\n' -}}
{%- endfor -%}{{- '</tool_calls>' -}}{%- endif -%}{#- <beginning_of_sentence> -#}"#;
const FIREFUNCTION: &str = r#"{%- if m.tool_calls -%}{{- ' functools[' -}}{%- for c in m.tool_calls -%}
    {{- '{"name": "' + c.function.name + '", "arguments": ' + c.function.arguments|tojson + '}' -}}
    {%- if not loop.last -%}{{- ', ' -}}{%- endif -%}
{%- endfor -%}{{- ']' -}}{%- endif -%}"#;
const FUNCTIONARY: &str = r"{%- for c in m.tool_calls or [] -%}
    {{- '<function=' + c.function.name + '>' + c.function.arguments|tojson + '</function>' -}}
{%- endfor -%}{#- <{start_tag}={function_name}> -#}";
const MINICPM: &str = r#"{%- for c in m.tool_calls or [] -%}
    {{- '<function name="' + c.function.name + '">' -}}
    {%- for k, v in c.function.arguments|items -%}
        {{- '<param name="' + k + '">' + (v if v is string else v|tojson) + '</param>' -}}
    {%- endfor -%}
    {{- '</function>' -}}
{%- endfor -%}"#;

impl World {
    /// A reply has one call at most.
    pub fn one_call(&self) -> bool {
        matches!(self.name, "llama3" | "harmony" | "gigachat")
    }

    fn new(name: &'static str, calls: &str, tokens: &[(&str, i32)]) -> Self {
        let template =
            format!("{{%- for m in messages -%}}@{{{{ m.role }}}}@{{{{- m.content -}}}}{calls}{{%- endfor -%}}");
        // Qwen's tags are in the vocabulary of a model of the repository.
        let vocab = if tokens.is_empty() { test_support::pocket().shared_vocab() } else { vocab_of(tokens) };
        let dialect = Dialect::detect(Some(&template), &vocab);
        Self { name, template, vocab, dialect, compiler: OnceLock::new() }
    }

    fn compiler(&self) -> &Compiler {
        self.compiler.get_or_init(|| Compiler::new(Arc::clone(&self.vocab), Limits::default()))
    }

    /// The grammar of calls; `None` where the dialect has none for this choice.
    pub fn grammar(
        &self,
        definitions: &[Value],
        choice: ToolChoice,
        parallel: bool,
        thinking: Thinking,
    ) -> Result<Option<Arc<dyn Grammar>>, Error> {
        let tools = definitions.iter().map(Tool::from_json).collect::<Result<_, _>>()?;
        let spec = self.dialect.tool_spec(
            Tools { tools, choice, parallel, allowed: None },
            None,
            thinking,
            &Limits::default(),
        )?;
        spec.map(|spec| self.compile(&spec)).transpose()
    }

    /// The grammar of at least one call, or of a text of this form; `None` where calls have nothing that opens them.
    pub fn calls_or(&self, definitions: &[Value], form: Kind, thinking: Thinking) -> Option<Arc<dyn Grammar>> {
        let tools = definitions.iter().map(|tool| Tool::from_json(tool).expect("a tool")).collect();
        let tools = Tools { tools, choice: ToolChoice::Auto, parallel: true, allowed: None };
        let spec = self.dialect.tool_spec(tools, Some(form), thinking, &Limits::default()).expect("tools");
        let compiled = |spec: Spec| self.compile(&spec).unwrap_or_else(|error| panic!("{}: {error}", self.name));
        spec.map(compiled)
    }

    pub fn compile(&self, spec: &Spec) -> Result<Arc<dyn Grammar>, Error> {
        self.compiler().compile(spec)
    }

    /// The grammar of at least one call.
    pub fn required(&self, definitions: &[Value], parallel: bool) -> Arc<dyn Grammar> {
        let grammar = self.grammar(definitions, ToolChoice::Required, parallel, Thinking::Done);
        let grammar = grammar.unwrap_or_else(|error| panic!("{}: {error}", self.name));
        grammar.unwrap_or_else(|| panic!("{}: it shows a form of calls", self.name))
    }

    /// Whether the grammar takes this text and may end after it.
    pub fn takes(&self, grammar: &Arc<dyn Grammar>, text: &str) -> bool {
        test_support::takes_tokens(grammar, &self.vocab, &self.vocab.encode(text, Special::Parse))
    }

    /// Writes a text by drawing among the allowed tokens.
    pub fn write(&self, grammar: &Arc<dyn Grammar>, random: &mut Random, most: usize) -> Option<String> {
        test_support::write(grammar, &self.vocab, random, most)
    }

    /// The calls and the text of a reply.
    pub fn read(&self, definitions: &[Value], reply: &str) -> (Vec<Call>, String) {
        let tool_schemas = definitions.iter().filter_map(ToolSchema::from_tool).collect();
        let options = ReplyOptions {
            starts_in_reasoning: false,
            continues: false,
            reasoning: true,
            tools: true,
            forced: false,
            either: false,
            tool_schemas,
        };
        let Read { thought, text, calls } = read(&self.dialect, &options, reply);
        let parse = |(name, arguments): (String, String)| {
            let map =
                serde_json::from_str(&arguments).unwrap_or_else(|error| panic!("{error}: {arguments} of {reply}"));
            (name, map)
        };
        (calls.into_iter().map(parse).collect(), thought + &text)
    }

    /// Calls as the template writes them, after some text.
    pub fn rendered(&self, content: &str, calls: &[Call]) -> String {
        let calls: Vec<Value> = calls
            .iter()
            .map(|(name, arguments)| json!({"type": "function", "function": {"name": name, "arguments": arguments}}))
            .collect();
        let messages = vec![
            json!({"role": "user", "content": "?"}),
            json!({"role": "assistant", "content": content, "tool_calls": calls}),
        ];
        let template = ChatTemplate::new(&self.template).expect("a template");
        let prompt = template.render(&Chat { messages, ..Chat::default() }).expect("it renders");
        let (_, reply) = prompt.text.split_once("@assistant@").expect("the assistant's message");
        reply.to_owned()
    }
}

/// What a reply was taken apart into; of calls name and arguments.
#[derive(Default)]
pub struct Read {
    pub thought: String,
    pub text: String,
    pub calls: Vec<(String, String)>,
}

pub fn read(dialect: &Dialect, options: &ReplyOptions, reply: &str) -> Read {
    let mut read = Read::default();
    for event in events(dialect, options, &[reply]) {
        match event {
            ReplyEvent::Reasoning(more) => read.thought += &more,
            ReplyEvent::Text(more) => read.text += &more,
            ReplyEvent::ToolCallStart { name, .. } => read.calls.push((name, String::new())),
            ReplyEvent::ToolCallArguments { index, delta } => read.calls[index].1 += &delta,
            ReplyEvent::ToolCallEnd { .. } => {}
        }
    }
    read
}

/// Name and arguments.
pub type Call = (String, Map<String, Value>);

/// The events of a reply in pieces, neighbours of one kind joined.
pub fn events(dialect: &Dialect, options: &ReplyOptions, pieces: &[&str]) -> Vec<ReplyEvent> {
    let mut parser = dialect.parser(options.clone());
    let mut events: Vec<ReplyEvent> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    events.extend(parser.finish());
    let mut joined: Vec<ReplyEvent> = Vec::new();
    for event in events {
        match (joined.last_mut(), event) {
            (Some(ReplyEvent::Reasoning(a)), ReplyEvent::Reasoning(b))
            | (Some(ReplyEvent::Text(a)), ReplyEvent::Text(b)) => a.push_str(&b),
            (
                Some(ReplyEvent::ToolCallArguments { index: i, delta: a }),
                ReplyEvent::ToolCallArguments { index: j, delta: b },
            ) if *i == j => a.push_str(&b),
            (_, event) => joined.push(event),
        }
    }
    joined
}
