//! Names of models as Ollama's clients write them: with a tag where there is none, or with the host of a hub.

use crate::registry::Registry;

/// The name by which the registry is asked: as given where it is known so, else without the tag `latest` and the hub's host.
pub(super) fn asked(registry: &Registry, given: Option<&str>) -> Option<String> {
    let given = given.filter(|name| !name.is_empty())?;
    let plain = plain(given);
    let known = [given, plain, without_host(given)].into_iter().find(|name| registry.knows(name));
    Some(known.unwrap_or(plain).to_owned())
}

/// A name as the hub knows it.
pub(super) fn plain(given: &str) -> &str {
    let name = without_host(given);
    name.strip_suffix(LATEST).unwrap_or(name)
}

fn without_host(given: &str) -> &str {
    HOSTS.iter().find_map(|host| given.strip_prefix(host)).unwrap_or(given)
}

/// A name as it is listed: clients take a tag for granted.
pub(super) fn listed(id: &str) -> String {
    if id.contains(':') { id.to_owned() } else { format!("{id}{LATEST}") }
}

const LATEST: &str = ":latest";
const HOSTS: [&str; 2] = ["hf.co/", "huggingface.co/"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_and_hosts_are_taken_off_and_put_on() {
        assert_eq!(
            (plain("pocket"), plain("pocket:latest"), plain("hf.co/u/r:Q4_K_M")),
            ("pocket", "pocket", "u/r:Q4_K_M")
        );
        assert_eq!((listed("pocket"), listed("u/r:Q4_K_M")), ("pocket:latest".into(), "u/r:Q4_K_M".into()));
    }
}
