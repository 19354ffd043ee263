//! The sampler's parameters as options: flags of programs, fields of requests, keys of model files. All are made from the
//! engine's table of parameters. Knows no value's meaning.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;

use clap::builder::{TypedValueParser, ValueParser};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use engine::sample::{Kind, PARAMETERS, Parameter, Range, SampleError, SamplingParams, Setting, Stage};
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::{Value, json};
use text::TokenId;

/// Parameters that were given, and no others: what is not given leaves the model file's value, or else the built-in one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SamplingOptions {
    given: BTreeMap<&'static str, Setting>,
}

impl SamplingOptions {
    /// What was given for the parameter of this name.
    pub fn get(&self, name: &str) -> Option<&Setting> {
        self.given.get(name)
    }

    /// Puts what was given into `params`.
    ///
    /// # Errors
    /// A value outside of its range. [`SamplingParams::validate`] knows the limits of lists.
    pub fn apply(&self, params: &mut SamplingParams) -> Result<(), SampleError> {
        let given = PARAMETERS.iter().filter_map(|parameter| Some((parameter, self.given.get(parameter.name)?)));
        for (parameter, setting) in given {
            parameter.set(params, setting)?;
        }
        Ok(())
    }
}

/// The defaults of a model: the built-in ones, and over them the `general.sampling.*` values of its file. A value that is
/// out of range is left out, and the log says so.
pub fn defaults_of_file<'a>(values: impl IntoIterator<Item = (&'a String, &'a String)>) -> SamplingParams {
    let mut params = SamplingParams::default();
    for (key, value) in values {
        let Some(parameter) = PARAMETERS.iter().find(|parameter| parameter.file_key == Some(key.as_str())) else {
            tracing::debug!(%key, %value, "the model file's sampling key is not used");
            continue;
        };
        let Some(setting) = parameter.setting_of_file(value) else {
            tracing::warn!(%key, %value, "the model file's sampling value cannot be read: ignored");
            continue;
        };
        let mut tried = params.clone();
        let set = parameter.set(&mut tried, &setting).and_then(|()| tried.validate(ANY_VOCABULARY));
        match set {
            Ok(()) => params = tried,
            Err(error) => {
                tracing::warn!(%key, %value, %error, "the model file's sampling value is out of range: ignored")
            }
        }
    }
    params
}

/// The parameters as requests name them, with their values.
pub fn request_fields(params: &SamplingParams) -> impl Iterator<Item = (&'static str, Value)> {
    PARAMETERS.iter().filter_map(|parameter| {
        let value = match parameter.get(params) {
            Setting::Number(x) => json!(x),
            Setting::Integer(n) => json!(n),
            Setting::Seed(seed) => json!(seed),
            Setting::Texts(texts) => json!(texts),
            Setting::Biases(_) => return None,
        };
        Some((*parameter.fields.first()?, value))
    })
}

/// The fields of requests, each with its description and the JSON schema of its value.
pub fn request_schema() -> impl Iterator<Item = (&'static str, Value)> {
    PARAMETERS.iter().flat_map(|parameter| parameter.fields.iter().map(move |field| (*field, schema(parameter))))
}

fn schema(parameter: &Parameter) -> Value {
    let mut schema = match parameter.kind {
        Kind::Number => json!({ "type": ["number", "null"], "format": "float" }),
        Kind::Integer | Kind::Seed => json!({ "type": ["integer", "null"] }),
        Kind::Stages => json!({ "type": ["array", "string", "null"], "items": { "type": "string" } }),
        Kind::Texts => json!({ "type": ["array", "null"], "items": { "type": "string" } }),
        Kind::Biases => json!({}),
    };
    schema["description"] = json!(parameter.help);
    schema
}

/// A table of all parameters in Markdown, for the documents.
pub fn markdown_table() -> String {
    let mut table = "| flag | field of requests | key of model files | values | default | what it does |\n|---|---|---|---|---|---|\n".to_owned();
    let defaults = SamplingParams::default();
    let code =
        |names: &mut dyn Iterator<Item = String>| names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    for parameter in PARAMETERS {
        let flags = code(
            &mut std::iter::once(parameter.flag).chain(parameter.aliases.iter().copied()).map(|f| format!("--{f}")),
        );
        let fields = match parameter.kind {
            Kind::Biases => "`logit_bias`".to_owned(),
            _ => code(&mut parameter.fields.iter().map(|field| (*field).to_owned())),
        };
        let key = code(&mut parameter.file_key.iter().map(|key| format!("general.sampling.{key}")));
        let default = match parameter.get(&defaults) {
            Setting::Number(x) => x.to_string(),
            Setting::Integer(n) => n.to_string(),
            Setting::Texts(texts) => code(&mut texts.iter().map(|text| text.replace('\n', r"\n"))),
            Setting::Seed(_) => "a new one".to_owned(),
            Setting::Biases(_) => String::new(),
        };
        let values = if parameter.range == Range::Any { "" } else { parameter.range.words() };
        let help =
            parameter.help.split([' ', '\n']).take_while(|word| *word != "[default:").collect::<Vec<_>>().join(" ");
        table += &format!("| {flags} | {fields} | {key} | {values} | {default} | {help} |\n");
    }
    table
}

impl Args for SamplingOptions {
    fn augment_args(command: Command) -> Command {
        let command = command.next_help_heading("Sampling");
        PARAMETERS.iter().fold(command, |command, parameter| command.arg(flag(parameter)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SamplingOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut options = Self::default();
        options.update_from_arg_matches(matches)?;
        Ok(options)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for parameter in PARAMETERS {
            let Some(values) = matches.get_many::<Setting>(parameter.name) else { continue };
            if let Some(setting) = values.cloned().reduce(joined) {
                self.given.insert(parameter.name, setting);
            }
        }
        Ok(())
    }
}

/// Several values of one flag as one.
fn joined(first: Setting, more: Setting) -> Setting {
    match (first, more) {
        (Setting::Texts(first), Setting::Texts(more)) => Setting::Texts([first, more].concat()),
        (Setting::Biases(first), Setting::Biases(more)) => Setting::Biases([first, more].concat()),
        (_, last) => last,
    }
}

fn flag(parameter: &'static Parameter) -> Arg {
    let (help, more) = parameter.help.split_once('\n').unwrap_or((parameter.help, ""));
    let help = [help, more].join(" ");
    let several = matches!(parameter.kind, Kind::Texts | Kind::Biases);
    Arg::new(parameter.name)
        .long(parameter.flag)
        .aliases(parameter.aliases.iter().copied())
        .value_name(parameter.value_name)
        .help(help.trim().to_owned())
        .action(if several { ArgAction::Append } else { ArgAction::Set })
        .allow_negative_numbers(matches!(parameter.kind, Kind::Number | Kind::Integer))
        .allow_hyphen_values(parameter.kind == Kind::Texts)
        .value_parser(ValueParser::new(Typed(parameter)))
}

/// Reads the value of a parameter's flag.
#[derive(Clone, Copy)]
struct Typed(&'static Parameter);

impl TypedValueParser for Typed {
    type Value = Setting;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<Setting, clap::Error> {
        let parse = |text: &str| setting(self.0, text);
        TypedValueParser::parse_ref(&parse, command, arg, value)
    }
}

fn setting(parameter: &Parameter, text: &str) -> Result<Setting, String> {
    let in_range = |x: f64| {
        let range = parameter.flag_range.unwrap_or(parameter.range);
        if range.holds(x) { Ok(()) } else { Err(format!("{} expected", range.words())) }
    };
    match parameter.kind {
        Kind::Number => {
            let x: f32 = text.parse().map_err(|_| "a number is expected".to_owned())?;
            in_range(x.into())?;
            Ok(Setting::Number(x))
        }
        Kind::Integer => {
            let n: i64 = text.parse().map_err(|_| "a whole number is expected".to_owned())?;
            in_range(n as f64)?;
            Ok(Setting::Integer(n))
        }
        Kind::Seed => {
            text.parse().map(|seed| Setting::Seed(Some(seed))).map_err(|_| "0 to 2^64 - 1 expected".to_owned())
        }
        Kind::Stages => {
            let names = text.split([';', ',']).map(str::trim).filter(|name| !name.is_empty());
            let stages: Result<Vec<engine::sample::Stage>, SampleError> = names.map(str::parse).collect();
            let names =
                |stages: Vec<engine::sample::Stage>| stages.iter().map(|stage| stage.name().to_owned()).collect();
            stages.map(|stages| Setting::Texts(names(stages))).map_err(|error| error.to_string())
        }
        Kind::Texts => Ok(Setting::Texts(vec![text.to_owned()])),
        Kind::Biases => bias(text).map(|bias| Setting::Biases(vec![bias])),
    }
}

fn bias(text: &str) -> Result<(TokenId, f32), String> {
    let expected = || "ID=BIAS is expected, a token id and a number, for example 151=-1.5 or 151=-inf".to_owned();
    let (id, bias) = text.split_once('=').ok_or_else(expected)?;
    let id = id.trim().parse().map_err(|_| expected())?;
    let bias = bias.trim().parse::<f32>().map_err(|_| expected())?;
    if bias.is_nan() || bias == f32::INFINITY { Err(expected()) } else { Ok((TokenId(id), bias)) }
}

/// Reads the fields of a request that are parameters of the sampler, and passes over all others.
impl<'de> Deserialize<'de> for SamplingOptions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Fields)
    }
}

struct Fields;

impl<'de> Visitor<'de> for Fields {
    type Value = SamplingOptions;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut body: A) -> Result<SamplingOptions, A::Error> {
        // The place of the field that set a parameter, among its fields: the first one given counts.
        let mut ranks: HashMap<&'static str, usize> = HashMap::new();
        let mut options = SamplingOptions::default();
        while let Some(name) = body.next_key::<String>()? {
            let of = |parameter: &'static Parameter| {
                Some((parameter, parameter.fields.iter().position(|field| *field == name)?))
            };
            let Some((parameter, rank)) = PARAMETERS.iter().find_map(of) else {
                body.next_value::<IgnoredAny>()?;
                continue;
            };
            let setting = match parameter.kind {
                Kind::Number => body.next_value::<Option<f32>>()?.map(Setting::Number),
                Kind::Integer => body.next_value::<Option<i64>>()?.map(Setting::Integer),
                // A negative seed is a new one each time.
                Kind::Seed => body.next_value::<Option<i64>>()?.map(|seed| Setting::Seed(u64::try_from(seed).ok())),
                Kind::Stages => body.next_value::<Option<StagesField>>()?.map(|field| Setting::Texts(field.known())),
                Kind::Texts => body.next_value::<Option<Vec<String>>>()?.map(Setting::Texts),
                Kind::Biases => return Err(A::Error::custom("a field of tokens cannot be read without a vocabulary")),
            };
            let Some(setting) = setting else { continue };
            if ranks.get(parameter.name).is_some_and(|&before| before < rank) {
                continue;
            }
            if ranks.insert(parameter.name, rank) == Some(rank) {
                return Err(A::Error::duplicate_field(parameter.fields[rank]));
            }
            options.given.insert(parameter.name, setting);
        }
        Ok(options)
    }
}

/// The stages of a request, as names or in llama.cpp's short form of a letter each.
#[derive(serde::Deserialize)]
#[serde(untagged, expecting = "a list of names, or a text of their letters, expected")]
enum StagesField {
    Names(Vec<String>),
    Letters(String),
}

impl StagesField {
    /// Those that there are here. Clients send all that llama.cpp and its relatives know, and expect the others to be skipped.
    fn known(self) -> Vec<String> {
        let known = |found: Option<Stage>, given: &str| {
            if found.is_none() {
                tracing::debug!(sampler = %given.chars().take(40).collect::<String>(), "an unknown sampler is left out");
            }
            found.map(|stage| stage.name().to_owned())
        };
        match self {
            Self::Names(names) => names.iter().filter_map(|name| known(name.parse().ok(), name)).collect(),
            Self::Letters(letters) => letters
                .chars()
                .filter_map(|letter| known(Stage::of_letter(letter), letter.encode_utf8(&mut [0; 4])))
                .collect(),
        }
    }
}

/// Larger than every vocabulary: values of a file name no tokens.
const ANY_VOCABULARY: usize = u32::MAX as usize;

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, text: &str) -> Result<Setting, String> {
        setting(Parameter::named(name).expect(name), text)
    }

    #[test]
    fn flags_keep_their_ranges() {
        assert_eq!(of("top_p", "0.25"), Ok(Setting::Number(0.25)));
        assert_eq!(of("presence_penalty", "-2"), Ok(Setting::Number(-2.0)));
        assert_eq!(of("penalty_last_n", "-1"), Ok(Setting::Integer(-1)));
        for (name, wrong) in [
            ("top_p", "1.01"),
            ("top_p", "nan"),
            ("temperature", "-0.1"),
            ("presence_penalty", "inf"),
            ("presence_penalty", "1e39"),
            ("top_k", "-1"),
            ("top_k", "4294967296"),
            ("mirostat", "3"),
            ("penalty_last_n", "-2"),
        ] {
            assert!(of(name, wrong).is_err(), "{name} {wrong}");
        }
        assert_eq!(of("stages", "top_k; temp"), Ok(Setting::Texts(vec!["top_k".into(), "temperature".into()])));
        assert_eq!(of("stages", ""), Ok(Setting::Texts(vec![])));
        assert!(of("stages", "top_k;bottom_k").unwrap_err().contains("bottom_k"));
        assert_eq!(of("logit_bias", "15=-inf"), Ok(Setting::Biases(vec![(TokenId(15), f32::NEG_INFINITY)])));
        for wrong in ["", "15", "=1", "a=1", "1=b", "-1=2", "1=nan", "1=inf", "4294967296=1"] {
            assert!(of("logit_bias", wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_servers_page_has_the_table_of_the_parameters() {
        let page = include_str!("../../../docs/SERVER.md");
        let table =
            page.split("--example sampling_table` -->\n").nth(1).and_then(|rest| rest.split("<!-- end -->").next());
        assert_eq!(
            table,
            Some(markdown_table().as_str()),
            "docs/SERVER.md: put the example's output between its marks"
        );
    }

    #[test]
    fn values_out_of_range_in_a_file_are_left_out_one_by_one() {
        let of = |file: &[(&str, &str)]| {
            let file: HashMap<String, String> = file.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
            defaults_of_file(&file)
        };
        let damaged = [("temp", "NaN"), ("top_p", "7"), ("min_p", "0.1"), ("unknown", "1"), ("mirostat", "9")];
        assert_eq!(of(&damaged), SamplingParams { min_p: 0.1, ..SamplingParams::default() });
        let no_values = [("temp", "hot"), ("top_k", "NaN"), ("sequence", "what;ever"), ("penalty_last_n", "")];
        assert_eq!(of(&no_values), SamplingParams::default());
    }

    #[test]
    fn every_key_of_a_file_is_read_whatever_type_the_converter_gave_it() {
        use engine::sample::{Mirostat, Stage};
        let file = [
            ("sequence", "top-k;Temp; adaptive_p;minp"),
            ("top_k", "20.0"),
            ("top_p", "0.8"),
            ("min_p", "0"),
            ("xtc_probability", "0.5"),
            ("xtc_threshold", "0.2"),
            ("temp", "0.6"),
            ("penalty_last_n", "-1"),
            ("penalty_repeat", "1.05"),
            ("mirostat", "2"),
            ("mirostat_tau", "4"),
            ("mirostat_eta", "0.25"),
        ];
        let file: HashMap<String, String> = file.into_iter().map(|(k, v)| (k.into(), v.into())).collect();
        let expected = SamplingParams {
            stages: vec![Stage::TopK, Stage::Temperature, Stage::MinP],
            top_k: 20,
            top_p: 0.8,
            min_p: 0.0,
            xtc_probability: 0.5,
            xtc_threshold: 0.2,
            temperature: 0.6,
            penalty_last_n: -1,
            repeat_penalty: 1.05,
            mirostat: Mirostat::V2,
            mirostat_tau: 4.0,
            mirostat_eta: 0.25,
            ..SamplingParams::default()
        };
        assert_eq!(defaults_of_file(&file), expected);
        assert_eq!(PARAMETERS.iter().filter(|p| p.file_key.is_some()).count(), file.len(), "all keys are tried here");
    }

    #[test]
    fn fields_of_a_request_are_read_by_every_name() {
        let read = |body: Value| serde_json::from_value::<SamplingOptions>(body).map_err(|error| error.to_string());
        let options =
            read(json!({"temperature": 0.5, "repetition_penalty": 3, "repeat_penalty": 2, "x": {}, "seed": -1,
            "top_p": null, "samplers": ["top_k"]}))
            .expect("fields");
        let mut params = SamplingParams { seed: Some(7), ..SamplingParams::default() };
        options.apply(&mut params).expect("in range");
        assert_eq!((params.temperature, params.repeat_penalty, params.seed), (0.5, 2.0, None));
        assert_eq!(params.top_p, SamplingParams::default().top_p);
        assert_eq!(params.stages, [engine::sample::Stage::TopK]);
        for (samplers, expected) in [
            (json!(["top_k", "infill", "adaptive_p", "tfs_z", "temp"]), vec![Stage::TopK, Stage::Temperature]),
            (json!("edskypmxt?ia"), Stage::DEFAULT_ORDER.to_vec()),
            (json!("se"), vec![Stage::TopNSigma, Stage::Penalties]),
            (json!(""), vec![]),
        ] {
            read(json!({ "samplers": samplers })).expect("skipped").apply(&mut params).expect("known");
            assert_eq!(params.stages, expected, "{samplers}");
        }
        assert!(read(json!({"samplers": 3})).unwrap_err().contains("letters"));
        assert!(read(json!({"temperature": "hot"})).unwrap_err().contains("f32"));
        let error = read(json!({"mirostat": 3})).expect("an integer").apply(&mut params).unwrap_err();
        assert_eq!(error.to_string(), "mirostat: 0, 1 or 2 expected, 3 found");
    }
}
