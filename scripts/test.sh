#!/usr/bin/env bash
# The tests of all crates, as .ci/run runs them.
exec "$(dirname "$0")/../.ci/run" test
