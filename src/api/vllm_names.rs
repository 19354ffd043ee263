//! The metrics that vLLM has too, under its names, for programs that route requests by them.
//! Owns the names and what is computed for them. Knows the text of `/metrics`, not what counts.

/// Families of ours that vLLM has under another name.
const NAMES: &[(&str, &str)] = &[
    ("llamacpp:requests_processing", "vllm:num_requests_running"),
    ("llamacpp:requests_deferred", "vllm:num_requests_waiting"),
    ("llamacpp:tokens_predicted", "vllm:generation_tokens"),
    ("llamacpp:prompt_tokens_cached", "vllm:prefix_cache_hits"),
    ("llamacpp:spec_decode_num_drafts", "vllm:spec_decode_num_drafts"),
    ("llamacpp:spec_decode_num_draft_tokens", "vllm:spec_decode_num_draft_tokens"),
    ("llamacpp:spec_decode_num_accepted_tokens", "vllm:spec_decode_num_accepted_tokens"),
    ("llamacpp:spec_decode_num_accepted_tokens_per_pos", "vllm:spec_decode_num_accepted_tokens_per_pos"),
    ("nextn:time_to_first_token_seconds", "vllm:time_to_first_token_seconds"),
    ("nextn:inter_token_seconds", "vllm:inter_token_latency_seconds"),
    ("nextn:request_seconds", "vllm:e2e_request_latency_seconds"),
];

/// What stands behind a family's name in its samples.
const ENDINGS: &[&str] = &["", "_total", "_bucket", "_sum", "_count"];

/// The families of an OpenMetrics text that vLLM has, under its names, and those that are made of several of ours.
pub(crate) fn renamed(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let about = ["# HELP ", "# TYPE "].into_iter().find(|sign| line.starts_with(sign)).unwrap_or_default();
        let rest = &line[about.len()..];
        let name = &rest[..rest.find(['{', ' ']).unwrap_or(rest.len())];
        let known = NAMES.iter().find_map(|(ours, theirs)| {
            let ending = name.strip_prefix(ours).filter(|ending| ENDINGS.contains(ending))?;
            Some((theirs, ending))
        });
        if let Some((theirs, ending)) = known {
            out += &format!("{about}{theirs}{ending}{}\n", &rest[name.len()..]);
        }
    }
    let value = |name: &str| -> f64 {
        let sample = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        sample.and_then(|number| number.parse().ok()).unwrap_or(0.0)
    };
    let (taken, limit) = (value("nextn:state_bytes"), value("nextn:state_limit_bytes"));
    let share = if limit > 0.0 { taken / limit } else { 0.0 };
    let prompt = value("llamacpp:prompt_tokens_total") + value("llamacpp:prompt_tokens_cached_total");
    out += &format!(
        "# HELP vllm:kv_cache_usage_perc Share of the memory for KV cache and recurrent state that is taken.\n\
         # TYPE vllm:kv_cache_usage_perc gauge\n\
         vllm:kv_cache_usage_perc {share}\n"
    );
    for (name, help) in [
        ("vllm:prompt_tokens", "Prompt tokens, computed and reused"),
        ("vllm:prefix_cache_queries", "Prompt tokens that were looked for in the prefix cache"),
    ] {
        out += &format!("# HELP {name} {help}.\n# TYPE {name} counter\n{name}_total {prompt}\n");
    }
    out + "# EOF\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_keep_their_samples_and_lose_none_of_their_labels() {
        let text = "# HELP llamacpp:prompt_tokens_cached Some.\n# TYPE llamacpp:prompt_tokens_cached counter\n\
                    llamacpp:prompt_tokens_cached_total 30\nllamacpp:prompt_tokens_total 10\n\
                    # TYPE llamacpp:spec_decode_num_accepted_tokens_per_pos counter\n\
                    llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position=\"0\"} 4\n\
                    nextn:state_bytes 5\nnextn:state_limit_bytes 20\nnextn:rows_total 9\n\
                    nextn:request_seconds_bucket{le=\"+Inf\"} 3\n# EOF\n";
        let expected = "# HELP vllm:prefix_cache_hits Some.\n# TYPE vllm:prefix_cache_hits counter\n\
                        vllm:prefix_cache_hits_total 30\n\
                        # TYPE vllm:spec_decode_num_accepted_tokens_per_pos counter\n\
                        vllm:spec_decode_num_accepted_tokens_per_pos_total{position=\"0\"} 4\n\
                        vllm:e2e_request_latency_seconds_bucket{le=\"+Inf\"} 3\n";
        let renamed = renamed(text);
        let computed = renamed.strip_prefix(expected).unwrap_or_else(|| panic!("{renamed}"));
        assert!(computed.contains("\nvllm:kv_cache_usage_perc 0.25\n"), "{computed}");
        assert!(computed.contains("\nvllm:prefix_cache_queries_total 40\n"), "{computed}");
        assert!(computed.ends_with("# EOF\n"), "{computed}");
    }
}
