#!/usr/bin/env bash
# Makes the pictures of the web pages in docs/pictures anew, with a real browser and the model inside the server.
exec "$(dirname "$0")/../tests/pages/run.sh" pictures "$@"
