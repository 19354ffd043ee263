"""Why a test of llama.cpp's server passes on llama-server alone: for the table of llama_server_tests.py."""

# The beginning of a test's name, and the reason.
REASONS = {}


def of(test):
    name = test.removeprefix("unit/")
    return next((why for begins, why in REASONS.items() if name.startswith(begins)), "**no reason written**")
