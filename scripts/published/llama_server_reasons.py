"""Why a test of llama.cpp's server passes on llama-server alone: for the table of llama_server_tests.py."""

VERBOSE = "it reads `__verbose`, the debugging output of a server started with `--verbose`"
FIRST = "the first part of a stream has an empty text as OpenAI's, not null"
DATE = "`strftime_now` gives the day; the template asks whether `date_string` is there"
THINKS = "what `auto` does with templates that open the thinking themselves"
SYNTH = "drafts of a second model (`draft-simple`), and made-up acceptance rates"
IMAGE = "an image becomes a note in its place, so that the conversation can go on"
METRICS = "a header's name in capitals; HTTP's names have no case"

# The beginning of a test's name, and the reason.
REASONS = {
    "test_basic.py::test_server_model_aliases_and_tags": "models have no tags, and the name is not listed among its aliases",
    "test_chat_completion.py::test_apply_chat_template": "of the templates by name only `chatml` is known",
    "test_chat_completion.py::test_chat_template_continue_final_message_mutual": "likewise: it starts with `--chat-template llama3`",
    "test_chat_completion.py::test_chat_template_": VERBOSE,
    "test_chat_completion.py::test_verbose": VERBOSE,
    "test_chat_completion.py::test_chat_completion_with_timings_per_token": FIRST,
    "test_chat_completion.py::test_logprobs_stream": FIRST,
    "test_chat_completion.py::test_chat_completions_token_count": "`/chat/completions/input_tokens`",
    "test_chat_completion.py::test_invalid_chat_completion_req[messages7]": "two messages of the assistant at the end are rendered as they are",
    "test_chat_completion.py::test_return_progress": "the prompt is cut in other places, at checkpoints",
    "test_compat_anthropic.py::test_anthropic_empty_messages": "a conversation without messages is an error",
    "test_compat_anthropic.py::test_anthropic_messages_basic": "a message has `timings`",
    "test_compat_anthropic.py::test_anthropic_tool_result_with_image": IMAGE,
    "test_compat_anthropic.py::test_anthropic_vision": IMAGE,
    "test_kv_keep_only_active.py": "it reads words of llama-server's log",
    "test_metrics.py::test_metrics_disabled": "`/metrics` is served unless `--metrics=off` is given",
    "test_metrics.py::test_metrics_timings_are_finite[8]": "`timings` has a list beside numbers, `acceptance_by_depth`",
    "test_metrics.py::test_metrics_timings_on_prompt_progress": "events of a prompt's progress have no `timings`",
    "test_metrics.py::test_metrics_prompt_processed": "a prompt of 11 tokens is computed again: no checkpoint is as early",
    "test_metrics.py": METRICS,
    "test_sleep.py::test_server_sleep_token_counting": "`/chat/completions/input_tokens`",
    "test_sleep.py": "rates are those of the last request, and requests of `/metrics` are counted too",
    "test_slot_save.py": "the end of a short prompt is computed again",
    "test_speculative.py": SYNTH,
    "test_template.py::test_date": DATE,
    "test_template.py::test_reasoning": THINKS,
    "test_chat_completion.py::test_chat_completions_multiple_choices": "the model ends its reply before 8 tokens: other seeds give other texts",
    "test_compat_oai_responses.py::test_responses_stream_with_llama_telemetry": "events of `/v1/responses` have no progress and no timings",
    "test_completion.py::test_n_probs_post_backend": "`--backend_sampling`, which the tested program did not take",
    "test_ctx_shift.py": "the model ends its reply after 3 tokens: other seeds give other texts",
    "test_tool_call.py": FIRST,
    "test_completion.py::test_n_probs_stream": "a step with an accepted draft is one event with several tokens",
    "test_completion.py::test_completion_parallel": "a slot is free again before the test looks",
    "test_security.py::test_cors_options": "pages of other origins are let in only where `--cors-origin` names them",
    "test_security.py::test_cors_origins": "`--cors-origins localhost`",
    "test_security.py::test_cors_proxy": "a proxy for the web page's MCP clients",
}


def of(test):
    name = test.removeprefix("unit/")
    return next((why for begins, why in REASONS.items() if name.startswith(begins)), "**no reason written**")
