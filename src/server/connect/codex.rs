//! Codex's settings in its `config.toml`; what else is in the file stays, comments too.

use toml_edit::{DocumentMut, Item, Table, TableLike, Value};

use super::ask::{Facts, PROVIDER};

/// The text of the file with a provider for this server, which is the one in use.
///
/// # Errors
/// The file is no TOML, or has something else where providers belong.
pub(super) fn edited(old: Option<&str>, facts: &Facts) -> Result<String, String> {
    let mut document: DocumentMut =
        old.unwrap_or_default().parse().map_err(|error: toml_edit::TomlError| format!("this is no TOML: {error}"))?;
    let model = facts.model();
    let root = document.as_table_mut();
    set(root, "model", Some(model.id.as_str().into()));
    set(root, "model_provider", Some(PROVIDER.into()));
    set(root, "model_context_window", model.n_ctx.map(|n| i64::try_from(n).unwrap_or(i64::MAX).into()));
    let mut empty = Table::new();
    empty.set_implicit(true);
    let providers = root.entry("model_providers").or_insert(Item::Table(empty)).as_table_like_mut();
    let providers = providers.ok_or("model_providers: a table is expected")?;
    let provider = providers.entry(PROVIDER).or_insert(Item::Table(Table::new())).as_table_like_mut();
    let provider = provider.ok_or_else(|| format!("model_providers.{PROVIDER}: a table is expected"))?;
    set(provider, "name", Some(PROVIDER.into()));
    set(provider, "base_url", Some(format!("{}/v1", facts.place.url).into()));
    set(provider, "wire_api", Some("responses".into()));
    set(provider, "experimental_bearer_token", facts.place.key.as_deref().map(Value::from));
    Ok(document.to_string())
}

/// A value in the place and with the comments of the one that was there; without one it is taken out.
fn set(table: &mut dyn TableLike, name: &str, value: Option<Value>) {
    let Some(mut value) = value else {
        table.remove(name);
        return;
    };
    match table.get_mut(name).and_then(Item::as_value_mut) {
        Some(there) => {
            *value.decor_mut() = there.decor().clone();
            *there = value;
        }
        None => _ = table.insert(name, Item::Value(value)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::clients::tests::facts;
    use super::*;

    #[test]
    fn what_others_have_set_stays_with_its_comments() {
        let old = "# mine\nmodel = \"x\" # before\napproval_policy = \"never\"\n\n[model_providers.other] # theirs\nname = \"o\"\n\n\
                   [mcp_servers.a]\ncommand = \"b\"\n";
        let new = edited(Some(old), &facts(Some("k"), Some(4096))).unwrap();
        for part in [
            "# mine\nmodel = \"pocket\" # before\napproval_policy = \"never\"\nmodel_provider = \"nextn\"\nmodel_context_window = 4096\n",
            "[model_providers.other] # theirs\nname = \"o\"\n",
            "[model_providers.nextn]\nname = \"nextn\"\nbase_url = \"http://127.0.0.1:8080/v1\"\nwire_api = \"responses\"\n\
             experimental_bearer_token = \"k\"\n",
            "[mcp_servers.a]\ncommand = \"b\"\n",
        ] {
            assert!(new.contains(part), "{part}\n--\n{new}");
        }
        let inline =
            edited(Some("model_providers = { nextn = { name = \"n\", base_url = \"x\" } }\n"), &facts(None, None))
                .unwrap();
        assert!(inline.parse::<DocumentMut>().is_ok() && inline.contains("8080/v1"), "{inline}");
    }

    #[test]
    fn broken_files_are_left_alone() {
        for old in ["model = ", "model_providers = 3", "[model_providers]\nnextn = 7\n", "a = 1\na = 2\n"] {
            assert!(edited(Some(old), &facts(None, None)).is_err(), "{old}");
        }
    }
}
