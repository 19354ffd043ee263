#!/usr/bin/env python3
"""Checks the Helm chart, and the front's configuration where haproxy is installed. Exit code 1 when something is wrong.

Needs: pip install helm-python-sdk==0.2.2 kubernetes-validate==1.37.0 pyyaml   (Helm 4's own linter and templates, the schemas of
Kubernetes). Values of each kind that the templates tell apart are rendered, and each object is held strictly to its schema;
those of operators (KEDA, Prometheus) have no schema there and are only read.
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile

import kubernetes_validate
import yaml
from helm_python.chart import Chart, lint
from helm_python.errors import HelmError

CHART = pathlib.Path(__file__).parent / "helm" / "nextn"
VERSIONS = ["1.25", "1.37"]
VALUES = {
    "defaults": {},
    "all": {
        "model": {"file": "m.gguf", "alias": "m"}, "models": {"existingClaim": "models"}, "cache": {"existingClaim": "cache"},
        "apiKeySecret": "keys", "autoscaling": {"kind": "hpa"}, "podMonitor": {"enabled": True, "keySecret": {"name": "one"}},
        "resources": {"limits": {"nvidia.com/gpu": 1}}, "nodeSelector": {"gpu": "yes"}, "podAnnotations": {"a": "b"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}], "imagePullSecrets": [{"name": "x"}], "extraArgs": ["--threads", "8"],
    },
    "hub, keda, no front": {
        "model": {"hub": "USER/REPO:Q4_K_M"}, "autoscaling": {"kind": "keda"}, "front": {"enabled": False},
    },
}


def objects(values):
    for path, text in Chart.load(CHART).render(values, name="fleet", namespace="models").items():
        if path.endswith(".yaml"):
            yield from ((path, o) for o in yaml.safe_load_all(text) if o)


def main():
    wrong, n = [], 0
    for title, values in VALUES.items():
        report = lint(CHART, values, strict=True)
        wrong += [f"{title}: lint: {m['path']}: {m['error']}" for m in report["messages"] if m["severity"] >= 2]
        wrong += [f"{title}: lint: {e}" for e in report["errors"]]
        for path, found in objects(values):
            n += 1
            for version in VERSIONS:
                try:
                    kubernetes_validate.validate(found, version, strict=True)
                except kubernetes_validate.SchemaNotFoundError:
                    if found["apiVersion"] not in ("keda.sh/v1alpha1", "monitoring.coreos.com/v1"):
                        wrong.append(f"{title}: {path}: no schema for {found['apiVersion']} {found['kind']}")
                except kubernetes_validate.ValidationError as error:
                    wrong.append(f"{title}: {path}: {found['kind']} {version}: {error.message}")
            if found["kind"] == "ConfigMap":
                config = found["data"]["haproxy.cfg"]
                if "10 fleet-nextn-servers:8080" not in config:
                    wrong.append(f"{title}: the front does not name the servers")
                if shutil.which("haproxy"):
                    with tempfile.NamedTemporaryFile("w", suffix=".cfg") as file:
                        file.write(config)
                        file.flush()
                        run = subprocess.run(["haproxy", "-c", "-f", file.name], capture_output=True, text=True)
                    if run.returncode:
                        wrong.append(f"{title}: haproxy: {run.stderr}{run.stdout}")
    try:
        list(objects({"autoscaling": {"kind": "hap"}}))
        wrong.append("a wrong autoscaling.kind is taken")
    except HelmError:
        pass
    print("\n".join(wrong) or f"{len(VALUES)} sets of values, {n} objects: all is well")
    sys.exit(bool(wrong))


main()
