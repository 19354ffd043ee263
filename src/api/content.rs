//! The content of a message while it is read from parts: a text, or parts where there are images among them.

use serde_json::{Value, json};

use crate::pictures;

/// Texts, images and videos in their order.
#[derive(Debug, Default)]
pub(crate) struct Content {
    /// Images, and the texts before them.
    parts: Vec<Value>,
    /// After the last image.
    text: String,
}

impl Content {
    /// There is nothing in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.text.is_empty()
    }

    /// Adds a text to the one before it.
    pub(crate) fn text(&mut self, text: &str) {
        self.text += text;
    }

    /// Adds a text; one that follows on another stands in a line of its own.
    pub(crate) fn line(&mut self, text: &str) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        self.text += text;
    }

    /// Adds the image at a URL.
    pub(crate) fn image(&mut self, url: &str) {
        self.add(pictures::part(url));
    }

    /// Adds an image in base64.
    pub(crate) fn image_of_base64(&mut self, encoded: &str) {
        self.add(pictures::part_of_base64(encoded));
    }

    /// Adds a part with a video, in the form of chat completions.
    pub(crate) fn video(&mut self, part: &Value) {
        self.add(part.clone());
    }

    fn add(&mut self, image: Value) {
        let rest = self.rest();
        self.parts.extend(rest);
        self.parts.push(image);
    }

    fn rest(&mut self) -> Option<Value> {
        let text = std::mem::take(&mut self.text);
        (!text.is_empty()).then(|| json!({ "type": "text", "text": text }))
    }

    /// As a message has it.
    pub(crate) fn into_value(mut self) -> Value {
        if self.parts.is_empty() {
            return self.text.into();
        }
        let rest = self.rest();
        self.parts.extend(rest);
        self.parts.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_one_and_images_stand_between() {
        let mut content = Content::default();
        content.text("a");
        content.text("b");
        assert_eq!(std::mem::take(&mut content).into_value(), json!("ab"));
        content.line("a");
        content.line("b");
        content.image("https://x");
        content.line("c");
        let text = |text: &str| json!({ "type": "text", "text": text });
        assert_eq!(content.into_value(), json!([text("a\nb"), pictures::part("https://x"), text("c")]));
        assert!(Content::default().is_empty());
    }
}
