//! The words of `nextn-server connect`: its own, and those of a server, which say where that one is.

use std::ffi::OsString;

use clap::{CommandFactory, Parser};
use program::exit::{Exit, Failure, Outcome};

use super::ask::Place;
use super::clients::Client;
use crate::args::{Args, HttpFlags};
use crate::config::{self, Wrong};

/// Print or write the settings by which another program uses this server.
///
/// Asks the running server for its models. Other options are those of nextn-server and say where it is: --host, --port,
/// --api-key, --api-key-file, --ssl-cert-file, --config, and their environment variables.
#[derive(Debug, Parser)]
#[command(
    name = "nextn-server connect",
    max_term_width = 100,
    override_usage = "nextn-server connect <CLIENT> [OPTIONS] [SERVER OPTIONS]"
)]
struct Own {
    /// The program that is to use this server
    client: Client,

    /// Address of the server [default: that of --host and --port]
    #[arg(long, value_name = "URL")]
    url: Option<String>,

    /// Use this model of the server [default: its first]
    #[arg(long, value_name = "NAME")]
    with_model: Option<String>,

    /// Write the settings into the program's file, after showing what changes
    #[arg(long)]
    write: bool,

    /// Write without asking
    #[arg(short, long, requires = "write")]
    yes: bool,
}

/// What is to be done.
#[derive(Debug)]
pub(super) struct Connect {
    pub(super) client: Client,
    pub(super) place: Place,
    /// The model that was asked for by name.
    pub(super) model: Option<String>,
    pub(super) write: bool,
    pub(super) yes: bool,
}

/// The command as a part of the server's: its own words, and the server's that say where that is.
pub(super) fn command(server: &clap::Command) -> clap::Command {
    let places = server.get_arguments().filter(|arg| arg.get_long().is_some_and(|long| PLACES.contains(&long)));
    Own::command().args(places.cloned())
}

/// Reads the words behind the program's name, of which the first is `connect`. `None`: all was said (`--help`).
///
/// # Errors
/// Words that mean nothing, and what a server has against its options.
pub(super) fn read(words: Vec<OsString>) -> Outcome<Option<Connect>> {
    let mut words = words.into_iter();
    let program: Vec<OsString> = words.by_ref().take(1).collect();
    let (own, rest) = parted(words.skip(1));
    let told = |error: clap::Error| {
        // `--help` comes here too, with code 0. A closed output has nobody to tell.
        let _ = error.print();
        if error.exit_code() == 0 { Ok(None) } else { Err(Failure::silent(Exit::Usage)) }
    };
    let own = match Own::try_parse_from(program.iter().cloned().chain(own)) {
        Ok(own) => own,
        Err(error) => return told(error),
    };
    let args = match config::resolve(program.into_iter().chain(rest).collect()) {
        Ok(resolved) => resolved.args,
        Err(Wrong::Usage(error)) => return told(error),
        Err(Wrong::File(words)) => return Err(Failure::message(Exit::Usage, words)),
    };
    let place = place(&args, own.url)?;
    let Own { client, with_model: model, write, yes, .. } = own;
    Ok(Some(Connect { client, place, model, write, yes }))
}

/// The words that are this command's own, and those of a server.
fn parted(words: impl Iterator<Item = OsString>) -> (Vec<OsString>, Vec<OsString>) {
    let command = Own::command();
    let (mut own, mut rest, mut has_client) = (Vec::new(), Vec::new(), false);
    let mut words = words;
    while let Some(word) = words.next() {
        let text = word.to_string_lossy().into_owned();
        let (name, has_value) = text.split_once('=').map_or((text.as_str(), false), |(name, _)| (name, true));
        let option = command.get_arguments().find(|arg| {
            let long = arg.get_long().is_some_and(|long| name.strip_prefix("--") == Some(long));
            long || arg.get_short().is_some_and(|short| name == format!("-{short}"))
        });
        // Behind options of a server a word may be the value of one.
        let is_client = !has_client && rest.is_empty() && !text.starts_with('-');
        has_client |= is_client;
        match option {
            Some(option) => {
                own.push(word);
                let takes = option.get_action().takes_values() && !has_value;
                own.extend(takes.then(|| words.next()).flatten());
            }
            None if is_client || matches!(name, "--help" | "-h") => own.push(word),
            None => rest.push(word),
        }
    }
    (own, rest)
}

/// Where the server of these options is, seen from this machine.
fn place(args: &Args, url: Option<String>) -> Outcome<Place> {
    let key = crate::run::api_keys(&args.access)?.into_iter().next();
    let url = url.unwrap_or_else(|| address(&args.http));
    let url = url.trim_end_matches('/').trim_end_matches("/v1").to_owned();
    if !(url.starts_with("http://") || url.starts_with("https://")) {
        return Err(Failure::message(
            Exit::Usage,
            format!("--url: http://HOST:PORT or https://HOST:PORT expected, `{url}` found"),
        ));
    }
    Ok(Place { url, key })
}

fn address(http: &HttpFlags) -> String {
    let host = match http.host.as_str() {
        // All addresses of the machine: one of them does.
        "0.0.0.0" => "127.0.0.1".to_owned(),
        "::" => "[::1]".to_owned(),
        host if host.contains(':') => format!("[{host}]"),
        host => host.to_owned(),
    };
    let scheme = if http.ssl_cert_file.is_some() { "https" } else { "http" };
    format!("{scheme}://{host}:{}", http.port)
}

/// Options of a server that say where it is, and which key it takes.
const PLACES: [&str; 7] = ["host", "port", "api-key", "api-key-file", "ssl-cert-file", "ssl-key-file", "config"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_and_the_manual_have_the_command_with_its_clients_and_places() {
        let whole = || crate::command();
        whole().debug_assert();
        for shell in [clap_complete::Shell::Bash, clap_complete::Shell::Zsh, clap_complete::Shell::Fish] {
            let mut script = Vec::new();
            program::shell::completions(whole(), shell, &mut script).expect("a vector takes all");
            let script = String::from_utf8(script).expect("a text");
            // Fish is not told the values of arguments without a name.
            assert!(["connect", "with-model"].iter().all(|word| script.contains(word)), "{shell}");
        }
        let mut pages = Vec::new();
        program::shell::man(whole(), &mut pages).expect("a vector takes all");
        let pages = String::from_utf8(pages).expect("a text").replace('\\', "");
        let (_, connect) = pages.split_once("nextn-server-connect").expect("a page of its own");
        assert!(["--with-model", "--write", "--host", "--api-key-file"].iter().all(|word| connect.contains(word)));
    }

    fn of(words: &str) -> Connect {
        let words = format!("nextn-server connect {words}");
        read(words.split(' ').map(OsString::from).collect()).expect("sound words").expect("a command")
    }

    #[test]
    fn words_of_both_kinds_may_stand_in_any_order() {
        let connect = of("codex --port 9000 --write --api-key a,b --host 0.0.0.0 --yes --with-model x");
        assert_eq!(
            (connect.client, connect.write, connect.yes, connect.model.as_deref()),
            (Client::Codex, true, true, Some("x"))
        );
        assert_eq!((connect.place.url.as_str(), connect.place.key.as_deref()), ("http://127.0.0.1:9000", Some("a")));
        let connect = of("claude --ssl-cert-file c.pem --ssl-key-file k.pem --host ::1");
        assert_eq!((connect.place.url.as_str(), connect.write), ("https://[::1]:8080", false));
        assert_eq!(of("--write claude --port 1").client, Client::Claude);
        assert_eq!(of("continue --url=http://box.lan:1/v1/").place.url, "http://box.lan:1");
    }

    #[test]
    fn what_means_nothing_is_refused() {
        for wrong in ["", "emacs", "claude --yes", "claude --prot 1", "claude --url box.lan", "claude more"] {
            let words = format!("nextn-server connect {wrong}");
            let read = read(words.split(' ').filter(|word| !word.is_empty()).map(OsString::from).collect());
            assert_eq!(read.expect_err(wrong).exit, Exit::Usage, "{wrong}");
        }
    }
}
