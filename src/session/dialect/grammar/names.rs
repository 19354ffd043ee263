//! Names of tools and parameters in the text of a call: how they are written, and which of them can be read back.

use constrain::Error;
use serde_json::Value;

use super::super::family::{Arguments, Form, ID, NUMBER, TYPE};
use super::super::tools::unusable;

/// A name as it stands in a call.
pub(super) fn name_in(form: &Form, name: &str) -> String {
    match form.arguments {
        Arguments::Object => {
            let quoted = Value::from(name).to_string();
            quoted[1..quoted.len() - 1].to_owned()
        }
        _ => name.to_owned(),
    }
}

/// A name that can be read back from between the texts around it.
pub(super) fn check_name(what: &str, name: &str, form: &Form) -> Result<(), Error> {
    let cuts = form.after.trim().split([ID, NUMBER]).next().filter(|cut| !cut.is_empty());
    let is_cut = !matches!(form.arguments, Arguments::Object) && cuts.is_some_and(|cut| name.contains(cut));
    // A name that begins its call must not look like text.
    let is_text = form.before.is_empty() && name.contains(char::is_whitespace);
    if is_readable(name) && !is_cut && !is_text {
        return Ok(());
    }
    Err(unreadable(what, name))
}

pub(super) fn is_readable(name: &str) -> bool {
    !name.is_empty() && name.len() <= 128 && name.trim() == name && !name.contains(['<', '>', '\n', ID, NUMBER, TYPE])
}

pub(super) fn unreadable(what: &str, name: &str) -> Error {
    let shown: String = name.chars().take(60).collect();
    unusable(&format!("the name of a {what} must have 1 to 128 bytes, no <, > or line break: {shown:?} found"))
}
