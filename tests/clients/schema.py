"""schemathesis over /openapi.json: requests made from the document, good and bad. No server error, no undocumented status."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from check import KEY, URL

program = Path(sys.executable).parent / "schemathesis"
# 501 says what the operator has not turned on, or what the model is not made for; it is documented where it may come.
config = tempfile.NamedTemporaryFile("w", suffix=".toml")
config.write('[checks]\nnot_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "501"]\n')
config.flush()
command = [
    program, "--config-file", config.name, "run", f"{URL}/openapi.json",
    "--header", f"Authorization: Bearer {KEY}",
    "--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance",
    "--max-examples", os.environ.get("NEXTN_EXAMPLES", "60"),
    "--phases", "examples,coverage,fuzzing",
    "--request-timeout", "60",
    "--seed", "1",
    "--generation-database", "none",
    "--continue-on-failure",
]
done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=os.environ.get("TMPDIR", "/tmp"))
print(done.stdout, file=sys.stderr)
last = [line for line in done.stdout.splitlines() if line.strip()][-1].strip("= ")
print("ok" if done.returncode == 0 else "FAIL", "requests from /openapi.json:", last)
sys.exit(done.returncode != 0)
