//! A model that is ready for this program's prompts. Errors carry the exit code of what was at fault.

use std::path::Path;
use std::sync::Arc;

use engine::{RequestError, RequestOptions, SubmitError};
use hub::ModelFiles;
use model::NextNHead;
use serde_json::Value;
use session::options::ImageOptions;
use session::{
    Conversation, Fault, FileProgress, Form, FormError, LoadedModel, ModelOptions, OpenError, PrepareError, Prepared,
    Video, Wanted,
};
use speculate::Mode;

use super::args::Args;
use program::exit::{Exit, Failure, Outcome};
use program::sanitize::clean_line;

/// An open model and what replies of it must be made of.
pub struct Loaded {
    /// The model.
    pub model: LoadedModel,
    /// Where drafts come from, as asked for.
    pub spec: Mode,
    /// What replies must be made of.
    pub form: Option<Form>,
}

/// What the model is asked.
#[derive(Clone, Debug)]
pub enum Prompt {
    /// A text to continue as it stands.
    Raw(String),
    /// A conversation.
    Chat {
        /// Its messages.
        messages: Vec<Value>,
        /// The images in them, as files.
        images: Vec<Arc<[u8]>>,
        /// The videos in them.
        videos: Vec<Video>,
        /// Whether to think first; `None` leaves it to the template.
        thinking: Option<bool>,
    },
}

impl Loaded {
    /// Opens the files of the command line's model, telling `progress`; a mistake in `form` is told now, before the first question.
    ///
    /// # Errors
    /// With the code of the options, of the model file or of the machine.
    pub fn open(args: &Args, files: &ModelFiles, form: Option<Form>, progress: FileProgress) -> Outcome<Self> {
        let options = ModelOptions {
            run: args.run.clone(),
            adapters: args.adapters.clone(),
            drafts: args.spec.clone(),
            head_beside: files.head.clone(),
            images: ImageOptions { without: args.hub.no_mmproj, ..args.images.clone() },
            projector_beside: files.projector.clone(),
            progress,
            ..ModelOptions::default()
        };
        let model = session::open(program::source(files.model.as_deref()), &options).map_err(|error| match error {
            OpenError::Template(_) => Failure::message(Exit::ModelFile, format!("{error} (--raw needs no template)")),
            error => Failure::new(exit_of(error.fault()), error),
        })?;
        let model = model.with_context_shift(args.shift.shift());
        model.grammar(form.as_ref()).map_err(not_prepared)?;
        Ok(Self { model, spec: args.spec.spec, form })
    }

    /// # Errors
    /// The model cannot be asked in a chat.
    pub fn check_template(&self) -> Outcome<()> {
        if self.model.has_template() { Ok(()) } else { Err(not_prepared(PrepareError::NoTemplate)) }
    }

    /// The request that asks for a reply to `prompt`, for as long as it is wanted.
    ///
    /// # Errors
    /// With the code of the prompt, or of the options.
    pub fn prepare(&self, prompt: Prompt, options: RequestOptions, wanted: Wanted<'_>) -> Outcome<Prepared> {
        let prepared = match prompt {
            Prompt::Raw(text) => self.model.grammar(self.form.as_ref()).and_then(|grammar| {
                let tokens = self.model.vocab().encode_prompt(&text);
                self.model.prepare_text(tokens, RequestOptions { grammar, ..options })
            }),
            Prompt::Chat { messages, images, videos, thinking } => {
                let mut conversation = Conversation {
                    messages,
                    pictures: images,
                    videos,
                    form: self.form.clone(),
                    reads_calls: true,
                    ..Conversation::default()
                };
                conversation.reasoning.enable = thinking;
                self.model.prepare(conversation, options, wanted)
            }
        };
        prepared.map_err(not_prepared)
    }

    /// One line about it for people.
    pub fn line(&self) -> String {
        let model = self.model.model();
        let about = model.describe();
        let head = match model.nextn() {
            NextNHead::Bound if model.heads().len() > 1 => "present, and the model's own",
            NextNHead::Bound => "present",
            NextNHead::Missing(_) => "incomplete",
            NextNHead::Absent => "none",
        };
        // Some names say it already.
        let types = match about.name.ends_with(&about.quantization) {
            true => String::new(),
            false => format!(" {}", about.quantization),
        };
        let line = format!(
            "{}{types}, context {}, {}, NextN layer: {head}",
            about.name,
            self.model.engine().limits().n_ctx,
            self.device_names(),
        );
        clean_line(&line)
    }

    /// The device that outputs come from, or all that compute each layer together.
    fn device_names(&self) -> String {
        let model = self.model.model();
        let names: Vec<String> = model.weights_of_ranks().iter().map(|weights| weights.device().name()).collect();
        names.join("+")
    }

    /// How drafts are called: by the MTP layer, where nothing else can have made them.
    pub fn drafts_by_mtp(&self) -> bool {
        self.spec == Mode::NextN
    }

    /// Milliseconds that opening took.
    pub fn load_ms(&self) -> f64 {
        self.model.load_time().as_secs_f64() * 1e3
    }
}

/// What is said of a model that is no file.
pub fn no_file(path: &Path) -> String {
    format!(
        "{}: there is no such file; `-hf USER/REPO[:QUANT]` downloads a model of the hub, `nextn-cli models list` shows \
         those that are here",
        path.display()
    )
}

fn exit_of(fault: Fault) -> Exit {
    match fault {
        Fault::Options => Exit::Usage,
        Fault::File => Exit::ModelFile,
        Fault::Machine => Exit::Runtime,
    }
}

fn not_prepared(error: PrepareError) -> Failure {
    let exit = match &error {
        PrepareError::NoTemplate => {
            let words = "the model file has no chat template: use --raw to continue a text as it stands";
            return Failure::message(Exit::ModelFile, words);
        }
        PrepareError::Given { .. } | PrepareError::Picture { .. } | PrepareError::Places(_) => Exit::Prompt,
        PrepareError::Form { error: FormError::Busy | FormError::Broken(_), .. } => Exit::Runtime,
        PrepareError::Form { .. } => Exit::Usage,
        PrepareError::Request(RequestError::PromptTooLong { .. }) => {
            return Failure::message(Exit::Prompt, format!("{error} (-c N)"));
        }
        PrepareError::Request(RequestError::EmptyPrompt) => Exit::Prompt,
        PrepareError::Request(
            RequestError::Adapters(_)
            | RequestError::Logprobs { .. }
            | RequestError::Sampling(_)
            | RequestError::Stop(_),
        ) => Exit::Usage,
        // Tokens and boundaries come from us, and nobody gives up.
        PrepareError::Request(_) | PrepareError::NoInfill | PrepareError::Abandoned => Exit::Runtime,
    };
    Failure::new(exit, error)
}

/// The failure of a request that the engine does not take.
pub fn not_submitted(error: SubmitError) -> Failure {
    match error {
        SubmitError::Sampling(_) => Failure::new(Exit::Usage, error),
        error => Failure::new(Exit::Runtime, error),
    }
}
