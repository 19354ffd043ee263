//! How calls of our CUDA kernels get into ggml's files: lines of `cuda/hooks` behind lines of theirs. Pure text;
//! `scripts/build-plugin.sh` does the same.

/// `text` of the file `name` with what `hooks` puts behind its lines: a file, a line and what follows it, between bars.
///
/// # Errors
/// A line that does not stand in the file just once.
pub fn hooked(text: &str, hooks: &str, name: &str) -> Result<String, String> {
    let mut lines: Vec<&str> = text.lines().collect();
    // The last ones first: each goes straight behind its line.
    for hook in hooks.lines().rev() {
        let [file, line, what] = hook.splitn(3, '|').collect::<Vec<_>>()[..] else {
            return Err(format!("`{hook}` is no hook"));
        };
        if file != name {
            continue;
        }
        let found: Vec<usize> = (0..lines.len()).filter(|&i| lines[i] == line).collect();
        let [at] = found[..] else {
            let (line, n) = (line.trim(), found.len());
            return Err(format!("`{line}` stands there {n} times, not once: read what became of it"));
        };
        lines.insert(at + 1, what);
    }
    Ok(lines.join("\n") + "\n")
}
