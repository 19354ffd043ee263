//! Inputs of embeddings and rankings: from texts to the tokens that the model's makers meant.
//! Knows no wire format and no pooling.

use engine::Pooling;
use text::{Special, TokenId};

use crate::open::LoadedModel;

/// What stands for the query, and for the document, in a template of a file.
const QUERY: &str = "{query}";
const DOCUMENT: &str = "{document}";

impl LoadedModel {
    /// How hidden states are pooled where a request does not say: as the options say, else the file, else by their mean.
    pub fn pooling(&self) -> Pooling {
        self.embedding.pooling.or(self.model.embedding().pooling).unwrap_or(Pooling::Mean)
    }

    /// The norm of vectors where a request does not say.
    pub fn embd_normalize(&self) -> i32 {
        self.embedding.embd_normalize
    }

    /// The token that inputs of embeddings end with, where the model wants one.
    pub fn embedding_end(&self) -> Option<TokenId> {
        self.vocab().eos().filter(|_| self.model.embedding().add_eos)
    }

    /// The input that ranks a document for a query: by the file's template, else the two texts with the tokens around them
    /// that the file asks for.
    pub fn rank_tokens(&self, query: &str, document: &str) -> Vec<TokenId> {
        let (vocab, info) = (self.vocab(), self.model.embedding());
        if let Some(template) = &info.rerank_template {
            return vocab.encode(&filled(template, query, document), Special::Parse);
        }
        let end = vocab.eos().or(info.separator).filter(|_| info.add_eos);
        let mut tokens: Vec<TokenId> = vocab.bos().filter(|_| vocab.add_bos()).into_iter().collect();
        tokens.extend(vocab.encode(query, Special::Plain));
        tokens.extend(end);
        tokens.extend(info.separator);
        tokens.extend(vocab.encode(document, Special::Plain));
        tokens.extend(end);
        tokens
    }
}

/// `template` with both texts in their places. What stands in the texts themselves is no place.
fn filled(template: &str, query: &str, document: &str) -> String {
    let mut text = String::with_capacity(template.len() + query.len() + document.len());
    let mut rest = template;
    while let Some(at) = rest.find('{') {
        let (before, from) = rest.split_at(at);
        text += before;
        let (value, place) = match from {
            _ if from.starts_with(QUERY) => (query, QUERY),
            _ if from.starts_with(DOCUMENT) => (document, DOCUMENT),
            _ => ("{", "{"),
        };
        text += value;
        rest = &from[place.len()..];
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_take_their_places_and_open_no_new_ones() {
        let template = "<q>{query}</q> {x} {{document}} {query";
        assert_eq!(filled(template, "a {document} b", "{query}"), "<q>a {document} b</q> {x} {{query}} {query");
        assert_eq!(filled("", "a", "b"), "");
    }
}
