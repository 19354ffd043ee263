//! The programs that can be connected: where each keeps its settings, and what stands in them.

use std::path::PathBuf;

use clap::ValueEnum;
use serde_json::{Map, Value, json};

use super::ask::{Facts, Model, PROVIDER};
use super::codex::edited as edited_toml;
use super::json::{Comments, edited};
use super::yaml::edited as edited_yaml;

/// A program that uses a server.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(super) enum Client {
    /// Claude Code
    Claude,
    /// Codex
    Codex,
    /// OpenCode
    Opencode,
    /// Continue
    Continue,
}

impl Client {
    /// The file of its settings, by this environment.
    ///
    /// # Errors
    /// There is no home folder.
    pub(super) fn file(self, env: impl Fn(&str) -> Option<String>) -> anyhow::Result<PathBuf> {
        let set = |name: &str| env(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let home = || {
            let found = set("HOME").or_else(|| set("USERPROFILE"));
            found.ok_or_else(|| anyhow::anyhow!("HOME is not set: there is no place for settings"))
        };
        let folder = |name: &str, own: &str| set(name).map_or_else(|| Ok(home()?.join(own)), anyhow::Ok);
        Ok(match self {
            Self::Claude => folder("CLAUDE_CONFIG_DIR", ".claude")?.join("settings.json"),
            Self::Codex => folder("CODEX_HOME", ".codex")?.join("config.toml"),
            Self::Opencode => {
                let folder = folder("XDG_CONFIG_HOME", ".config")?.join("opencode");
                // It reads both; a file with comments is likely to have the other name.
                let commented = folder.join("opencode.jsonc");
                if commented.exists() { commented } else { folder.join("opencode.json") }
            }
            Self::Continue => folder("CONTINUE_GLOBAL_DIR", ".continue")?.join("config.yaml"),
        })
    }

    /// The text of its file with the settings for this server; `old`: the text as it is.
    ///
    /// # Errors
    /// Why the file is not touched.
    pub(super) fn edited(self, old: Option<&str>, facts: &Facts) -> Result<String, String> {
        match self {
            Self::Claude => edited(old, &claude(facts), Comments::Refused),
            Self::Codex => edited_toml(old, facts),
            Self::Opencode => edited(old, &opencode(facts), Comments::Kept),
            Self::Continue => edited_yaml(old, facts),
        }
    }

    /// What somebody should know before using it.
    pub(super) fn notes(self, facts: &Facts) -> Vec<String> {
        let Model { id, n_ctx } = facts.model();
        let Some(n_ctx) = *n_ctx else {
            return vec![format!("the model {id} is not loaded: its context is not known, and left out")];
        };
        let least = match self {
            Self::Claude | Self::Codex | Self::Opencode => AGENT_CONTEXT,
            Self::Continue => 0,
        };
        let mut notes = Vec::new();
        if n_ctx < least {
            notes.push(format!("a context of {n_ctx} tokens is little for an agent, whose first prompt has some 15,000 to 30,000: start the server with a larger -c"));
        }
        if self == Self::Claude && n_ctx < COMPACTS_AT {
            notes.push(format!("Claude Code compacts a conversation at {COMPACTS_AT} tokens at the earliest: with a context of {n_ctx}, use /compact before it is full"));
        }
        notes
    }
}

/// Variables that Claude Code sets for itself.
fn claude(facts: &Facts) -> Map<String, Value> {
    let model = &facts.model().id;
    let mut env = json!({
        "ANTHROPIC_BASE_URL": facts.place.url,
        "ANTHROPIC_AUTH_TOKEN": facts.key_or_word(),
        "ANTHROPIC_MODEL": model,
        "ANTHROPIC_DEFAULT_OPUS_MODEL": model,
        "ANTHROPIC_DEFAULT_SONNET_MODEL": model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": model,
    });
    if let Some(n_ctx) = facts.model().n_ctx.filter(|&n| n >= COMPACTS_AT) {
        env["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] = json!(n_ctx.to_string());
    }
    Map::from_iter([("env".to_owned(), env)])
}

/// A provider with all models of the server.
fn opencode(facts: &Facts) -> Map<String, Value> {
    let model = |model: &Model| {
        let mut body = json!({ "name": model.id });
        if let Some(n_ctx) = model.n_ctx {
            body["limit"] = json!({ "context": n_ctx, "output": n_ctx / REPLY_SHARE });
        }
        (model.id.clone(), body)
    };
    let models: Map<String, Value> = facts.models.iter().map(model).collect();
    let provider = json!({
        "npm": "@ai-sdk/openai-compatible",
        "name": PROVIDER,
        "options": { "baseURL": format!("{}/v1", facts.place.url), "apiKey": facts.key_or_word() },
        "models": models,
    });
    Map::from_iter([
        ("$schema".to_owned(), json!("https://opencode.ai/config.json")),
        ("model".to_owned(), json!(format!("{PROVIDER}/{}", facts.model().id))),
        ("provider".to_owned(), json!({ PROVIDER: provider })),
    ])
}

/// The part of a context that a reply may have: programs compact a conversation when the rest is full.
const REPLY_SHARE: u64 = 4;

/// Tokens below which agents have no room to work.
const AGENT_CONTEXT: u64 = 32_768;

/// The least number of tokens that Claude Code takes as the window of its compaction.
const COMPACTS_AT: u64 = 100_000;

#[cfg(test)]
pub(super) mod tests {
    use super::super::ask::Place;
    use super::*;

    pub(crate) fn facts(key: Option<&str>, n_ctx: Option<u64>) -> Facts {
        let place = Place { url: "http://127.0.0.1:8080".into(), key: key.map(str::to_owned) };
        let model = |id: &str, n_ctx| Model { id: id.into(), n_ctx };
        Facts { place, models: vec![model("pocket", n_ctx), model("other", None)] }
    }

    const ALL: [Client; 4] = [Client::Claude, Client::Codex, Client::Opencode, Client::Continue];

    #[test]
    fn settings_stand_where_each_program_looks_for_them() {
        let file = |client: Client, env: &[(&str, &str)]| {
            let env = |name: &str| env.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
            client.file(env).map(|path| path.display().to_string()).ok()
        };
        let homes = [
            "/h/.claude/settings.json",
            "/h/.codex/config.toml",
            "/h/.config/opencode/opencode.json",
            "/h/.continue/config.yaml",
        ];
        for (client, home) in ALL.into_iter().zip(homes) {
            assert_eq!(file(client, &[("HOME", "/h")]).as_deref(), Some(home));
            assert_eq!(file(client, &[]), None);
        }
        assert_eq!(file(Client::Codex, &[("HOME", "/h"), ("CODEX_HOME", "/c")]).as_deref(), Some("/c/config.toml"));
        assert_eq!(file(Client::Claude, &[("CLAUDE_CONFIG_DIR", "/c")]).as_deref(), Some("/c/settings.json"));
    }

    #[test]
    fn what_is_printed_is_what_a_new_file_gets_and_a_second_time_changes_nothing() {
        for client in ALL {
            for facts in [facts(None, Some(131_072)), facts(Some("k"), None)] {
                let printed = client.edited(None, &facts).unwrap();
                assert!(
                    printed.contains("pocket") && printed.contains("127.0.0.1:8080") && printed.ends_with('\n'),
                    "{printed}"
                );
                assert_eq!(printed.contains("\"k\""), facts.place.key.is_some(), "{printed}");
                assert_eq!(client.edited(Some(""), &facts).unwrap(), printed, "an empty file is as none");
                assert_eq!(client.edited(Some(&printed), &facts).unwrap(), printed, "{client:?}");
            }
        }
    }

    #[test]
    fn another_server_takes_the_place_of_the_first() {
        let (first, second) = (facts(Some("old"), Some(4096)), facts(None, Some(131_072)));
        for client in ALL {
            let before = client.edited(None, &first).unwrap();
            let after = client.edited(Some(&before), &second).unwrap();
            assert!(!after.contains("old") && !after.contains("4096"), "{client:?}: {after}");
            assert_eq!(after.matches("pocket").count(), before.matches("pocket").count(), "{after}");
        }
    }

    #[test]
    fn a_short_context_is_told() {
        assert!(
            Client::Claude.notes(&facts(None, Some(8192))).len() == 2
                && Client::Codex.notes(&facts(None, Some(65_536))).is_empty()
        );
        assert!(Client::Codex.notes(&facts(None, None))[0].contains("not loaded"));
    }
}
