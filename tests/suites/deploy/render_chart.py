"""Renders a Helm chart by Helm's own library, as `helm template` does.

    python3 render_chart.py CHART NAMESPACE < VALUES.json > OBJECTS.yaml
"""

import json
import sys

import helm_python

chart, namespace = sys.argv[1:]
with helm_python.Chart.load(chart) as loaded:
    manifests = loaded.render(json.load(sys.stdin), name="rl", namespace=namespace)
for path, text in sorted(manifests.items()):
    if path.endswith(".yaml"):
        print("---", text, sep="\n")
