//! Prompts as requests bring them: texts, token ids, or both mixed; one or several.
//! Owns their reading. Ids are numbers from the first byte on: a long list of them takes four bytes for each.

use std::fmt;

use engine::RequestOptions;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Unexpected, Visitor};
use session::Prepared;
use text::{Special, TokenId, Vocab};

use crate::error::ApiError;

use crate::pictures;
use crate::work::Work;

/// The prompts of a field.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Prompts {
    /// A text, or a list with ids in it.
    One(Prompt),
    /// A list of texts or of lists.
    Many(Vec<Prompt>),
}

/// One prompt, in its parts.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Prompt {
    parts: Vec<Part>,
    /// Images in base64, one for each [`MEDIA_MARKER`] of a text.
    images: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
enum Part {
    Text(String),
    /// As many as stand beside each other.
    Ids(Vec<TokenId>),
}

impl From<String> for Prompts {
    fn from(text: String) -> Self {
        Self::One(Prompt::of(Part::Text(text)))
    }
}

impl Prompts {
    /// How many there are; `field` is named in errors.
    ///
    /// # Errors
    /// 400 for none, and for too many.
    pub(crate) fn count(&self, field: &str) -> Result<usize, ApiError> {
        let n = if let Self::Many(prompts) = self { prompts.len() } else { 1 };
        match n {
            1..=MAX_PROMPTS => Ok(n),
            n => Err(ApiError::field(field, format!("{field}: 1 to {MAX_PROMPTS} prompts expected, {n} found"))),
        }
    }

    /// Each of them.
    pub(crate) fn into_list(self) -> Vec<Prompt> {
        match self {
            Self::One(prompt) => vec![prompt],
            Self::Many(prompts) => prompts,
        }
    }

    /// The engine's requests for them. Each is tokenised when those before it are known to fit.
    ///
    /// # Errors
    /// As [`Prompts::count`]; 400 for what the engine refuses; as [`Work::go_on`].
    pub(crate) fn prepared(
        self,
        work: &Work,
        field: &str,
        options: &RequestOptions,
    ) -> Result<Vec<Prepared>, ApiError> {
        self.count(field)?;
        let one = |mut prompt: Prompt| {
            work.go_on()?;
            let images = std::mem::take(&mut prompt.images);
            if images.is_empty() {
                return Ok(work.served().prepare_text(prompt.tokens(work.served().vocab()), options.clone())?);
            }
            let wrong = |what: String| ApiError::field(field, format!("{field}: multimodal_data: {what}"));
            let shown = work.served().sight().ok_or_else(|| wrong(session::BLIND.to_owned()))?.shown();
            let images =
                images.iter().map(|image| pictures::of_base64(image).map_err(wrong)).collect::<Result<_, _>>()?;
            let tokens = prompt.showing(&shown).tokens(work.served().vocab());
            Ok(work.served().prepare_seen(tokens, images, options.clone(), work)?)
        };
        self.into_list().into_iter().map(one).collect()
    }

    /// There are images beside a text.
    pub(crate) fn have_images(&self) -> bool {
        match self {
            Self::One(prompt) => !prompt.images.is_empty(),
            Self::Many(prompts) => prompts.iter().any(|prompt| !prompt.images.is_empty()),
        }
    }

    /// The only prompt.
    ///
    /// # Errors
    /// 400 where there are none or several.
    pub(crate) fn single(self, field: &str) -> Result<Prompt, ApiError> {
        match self {
            Self::One(prompt) => Ok(prompt),
            Self::Many(mut prompts) => match (prompts.pop(), prompts.is_empty()) {
                (Some(prompt), true) => Ok(prompt),
                _ => Err(ApiError::field(field, format!("{field}: one prompt expected here"))),
            },
        }
    }
}

impl Prompt {
    fn of(part: Part) -> Self {
        Self { parts: vec![part], images: Vec::new() }
    }

    /// With `shown` in place of each [`MEDIA_MARKER`].
    fn showing(mut self, shown: &str) -> Self {
        for part in &mut self.parts {
            if let Part::Text(text) = part {
                *text = text.replace(MEDIA_MARKER, shown);
            }
        }
        self
    }

    /// It is a text and nothing else.
    pub(crate) fn is_text(&self) -> bool {
        matches!(self.parts[..], [Part::Text(_)]) && self.images.is_empty()
    }

    /// Its tokens. Blocks.
    pub(crate) fn tokens(self, vocab: &Vocab) -> Vec<TokenId> {
        let mut tokens = Vec::new();
        for part in self.parts {
            match part {
                Part::Ids(ids) if tokens.is_empty() => tokens = ids,
                Part::Ids(ids) => tokens.extend(ids),
                Part::Text(text) if tokens.is_empty() => tokens = vocab.encode_prompt(&text),
                Part::Text(text) => tokens.extend(vocab.encode(&text, Special::Parse)),
            }
        }
        tokens
    }

    /// A list of texts and ids, item by item.
    fn push(&mut self, item: Item) -> Result<(), &'static str> {
        match (item, self.parts.last_mut()) {
            (Item::Id(id), Some(Part::Ids(ids))) => ids.push(id),
            (Item::Id(id), _) => self.parts.push(Part::Ids(vec![id])),
            (Item::Text(text), _) => self.parts.push(Part::Text(text)),
            (Item::List(_), _) => return Err(MIXED),
        }
        Ok(())
    }

    /// llama.cpp's form of a prompt that may have pictures beside its text, and that of an input in parts.
    fn of_object<'de, A: MapAccess<'de>>(map: A) -> Result<Self, A::Error> {
        let object = PromptObject::deserialize(MapAccessDeserializer::new(map))?;
        let text = match (object.prompt_string, object.content) {
            (Some(text), None) => text,
            (None, Some(parts)) => parts.into_iter().map(|TextPart::Text { text }| text).collect(),
            _ => {
                return Err(A::Error::custom(
                    "an object with `prompt_string`, or with `content` as a list of text parts, expected",
                ));
            }
        };
        Ok(Self { parts: vec![Part::Text(text)], images: object.multimodal_data.unwrap_or_default() })
    }

    /// A prompt for each text; `None` where there are ids too.
    fn each_text(self) -> Option<Vec<Self>> {
        let each = self.parts.into_iter().map(|part| matches!(part, Part::Text(_)).then(|| Self::of(part)));
        each.collect()
    }
}

/// A prompt as an object.
#[derive(serde::Deserialize)]
struct PromptObject {
    prompt_string: Option<String>,
    content: Option<Vec<TextPart>>,
    multimodal_data: Option<Vec<String>>,
}

/// A part of an input.
#[derive(serde::Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum TextPart {
    Text { text: String },
}

/// What stands in a list.
enum Item {
    Id(TokenId),
    Text(String),
    List(Prompt),
}

impl<'de> Deserialize<'de> for Prompts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ReadPrompts)
    }
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ReadItem)
    }
}

struct ReadPrompts;

impl<'de> Visitor<'de> for ReadPrompts {
    type Value = Prompts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a list of token ids, or a list of such prompts")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Prompts, E> {
        Ok(Prompts::One(Prompt::of(Part::Text(text.to_owned()))))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Prompts, A::Error> {
        Ok(Prompts::One(Prompt::of_object(map)?))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Prompts, A::Error> {
        // The list is one prompt, until a list in it tells that it is a list of prompts.
        let (mut one, mut several) = (Prompt::default(), None);
        while let Some(item) = list.next_element()? {
            match (&mut several, item) {
                (None, Item::List(prompt)) => {
                    let mut before = std::mem::take(&mut one).each_text().ok_or_else(|| A::Error::custom(MIXED))?;
                    before.push(prompt);
                    several = Some(before);
                }
                (None, item) => one.push(item).map_err(A::Error::custom)?,
                (Some(several), Item::List(prompt)) => several.push(prompt),
                (Some(several), Item::Text(text)) => several.push(Prompt::of(Part::Text(text))),
                (Some(_), Item::Id(_)) => return Err(A::Error::custom(MIXED)),
            }
        }
        let has_ids = one.parts.iter().any(|part| matches!(part, Part::Ids(_)));
        Ok(match several {
            Some(several) => Prompts::Many(several),
            None if has_ids => Prompts::One(one),
            None => Prompts::Many(one.each_text().unwrap_or_default()),
        })
    }
}

struct ReadItem;

impl<'de> Visitor<'de> for ReadItem {
    type Value = Item;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a token id, or a list of both")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Item, E> {
        Ok(Item::Text(text.to_owned()))
    }

    fn visit_u64<E: Error>(self, id: u64) -> Result<Item, E> {
        let narrow = u32::try_from(id).map_err(|_| E::invalid_value(Unexpected::Unsigned(id), &self))?;
        Ok(Item::Id(TokenId(narrow)))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Item, A::Error> {
        Prompt::of_object(map).map(Item::List)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Item, A::Error> {
        let mut prompt = Prompt::default();
        while let Some(item) = list.next_element()? {
            prompt.push(item).map_err(A::Error::custom)?;
        }
        Ok(Item::List(prompt))
    }
}

/// Stands for an image in a text.
pub(crate) const MEDIA_MARKER: &str = "<__media__>";

/// Prompts of one request at most.
const MAX_PROMPTS: usize = 64;

const MIXED: &str = "a text, a list of token ids, or a list of such prompts expected, not all of it in one list";

#[cfg(test)]
mod tests {
    use serde_json::{from_str, json};

    use super::*;

    fn read(value: serde_json::Value) -> Option<Prompts> {
        from_str(&value.to_string()).ok()
    }

    fn ids(ids: &[u32]) -> Part {
        Part::Ids(ids.iter().copied().map(TokenId).collect())
    }

    fn text(text: &str) -> Part {
        Part::Text(text.to_owned())
    }

    #[test]
    fn a_list_is_one_prompt_or_several() {
        let one = |parts: &[Part]| Some(Prompts::One(Prompt { parts: parts.to_vec(), images: Vec::new() }));
        let many = |prompts: &[&[Part]]| {
            Some(Prompts::Many(prompts.iter().map(|p| Prompt { parts: p.to_vec(), images: Vec::new() }).collect()))
        };
        assert_eq!(read(json!("a")), one(&[text("a")]));
        assert_eq!(read(json!([1, 2, "a", 3])), one(&[ids(&[1, 2]), text("a"), ids(&[3])]));
        assert_eq!(read(json!(["a", "b"])), many(&[&[text("a")], &[text("b")]]));
        assert_eq!(read(json!(["a", [1, "b"], "c"])), many(&[&[text("a")], &[ids(&[1]), text("b")], &[text("c")]]));
        assert_eq!(read(json!([[], ["a", "b"]])), many(&[&[], &[text("a"), text("b")]]));
        assert_eq!(read(json!([])), many(&[]));
        let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
        assert_eq!(read(json!({"prompt_string": "a", "multimodal_data": []})), one(&[text("a")]));
        assert_eq!(read(json!({"content": parts})), one(&[text("ab")]));
        assert_eq!(read(json!(["a", {"prompt_string": "b"}, [1]])), many(&[&[text("a")], &[text("b")], &[ids(&[1])]]));
        let image = json!({"prompt_string": "a", "multimodal_data": ["AAAA"]});
        let seen = Prompt { parts: vec![text("a")], images: vec!["AAAA".to_owned()] };
        assert_eq!(read(image), Some(Prompts::One(seen)));
        for wrong in [
            json!(1),
            json!(null),
            json!({}),
            json!({"prompt_string": "a", "multimodal_data": [1]}),
            json!({"prompt_string": 1}),
            json!({"content": "a"}),
            json!({"content": [{"type": "image_url"}]}),
            json!([1, {"prompt_string": "a"}]),
            json!([1.5]),
            json!([-1]),
            json!([u64::from(u32::MAX) + 1]),
            json!([true]),
            json!([1, [2]]),
            json!([[1], 2]),
            json!([[[1]]]),
        ] {
            assert_eq!(read(wrong.clone()), None, "{wrong}");
        }
    }
}
