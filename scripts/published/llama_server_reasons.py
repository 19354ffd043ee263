"""Why a test of llama.cpp's server passes on llama-server alone: for the table of llama_server_tests.py."""

IMAGE = "by design: an image becomes a note in its place, so that the conversation can go on; llama-server answers 500"

# The beginning of a test's name, and the reason.
REASONS = {
    "test_chat_completion.py::test_invalid_chat_completion_req[messages7]": "by design: two messages of the assistant at the end are rendered as they are; there they are an error",
    "test_chat_completion.py::test_chat_template_assistant_prefill[prefill1": "by design: the parts of a text follow each other as they are; there two line breaks come between them",
    "test_chat_completion.py::test_return_progress": "the prompt is cut in other places, at checkpoints",
    "test_chat_completion.py::test_chat_completions_multiple_choices": "other random numbers: a text ends earlier",
    "test_compat_anthropic.py::test_anthropic_empty_messages": "by design: a conversation without messages is an error, as Anthropic's own interface has it",
    "test_compat_anthropic.py::test_anthropic_tool_result_with_image": IMAGE,
    "test_compat_anthropic.py::test_anthropic_vision": IMAGE,
    "test_compat_oai_responses.py::test_responses_stream_with_llama_telemetry": "by design: a reply that `max_output_tokens` cuts ends with `response.incomplete`, as OpenAI's; the test waits for `response.completed`",
    "test_completion.py::test_n_probs_post": "other random numbers: a text ends earlier, or a token was certain",
    "test_completion.py::test_n_probs_stream": "a step with an accepted draft is one event with several tokens",
    "test_completion.py::test_completion_parallel": "a slot is free again before the test looks",
    "test_ctx_shift.py": "other random numbers: a text ends earlier",
    "test_kv_keep_only_active.py": "by design: it looks for words that llama-server writes into its log for this test",
    "test_metrics.py::test_metrics_disabled": "by design: `/metrics` is served unless `--metrics=off` is given",
    "test_metrics.py::test_metrics_prompt_processed": "by design: a prompt of 11 tokens is computed again, since a checkpoint in it costs a forward pass of its own, as much as it could save later; prompts of 68 tokens and more have one 4 tokens before their end",
    "test_security.py::test_cors_options[origin-Access-Control-Allow-Credentials": "by design: no page may send cookies, since the server has none and a proxy's are not for others",
    "test_security.py::test_cors_options[web.mydomain.fr-Access-Control-Allow-Headers": "by design: the headers that a preflight asks for are granted by name, since browsers do not count `Authorization` to `*`",
    "test_security.py::test_cors_origins_defaults_to_localhost_with_tools": "by design: it starts a server with tools of its own (`--tools all`)",
    "test_security.py::test_cors_proxy": "by design: a proxy for the web page's MCP clients",
    "test_sleep.py::test_server_sleep_read_only_endpoints": "by design: `nextn:http_requests_total` counts all requests, so the text differs after those that the test makes to see whether the model sleeps",
    "test_speculative.py::test_different": "drafts of a whole second model (`draft-simple`): `-md` takes the MTP layer of a file",
    "test_speculative.py::test_synth": "by design: acceptance rates that are made up (`--spec-synth-rates`), a test tool of llama.cpp's",
    "test_slot_save.py": "the end of a short prompt is computed again",
}


def of(test):
    name = test.removeprefix("unit/")
    return next((why for begins, why in REASONS.items() if name.startswith(begins)), "**no reason written**")
