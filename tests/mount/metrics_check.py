# SPDX-License-Identifier: Apache-2.0
"""Reads metrics with Prometheus's own parser, and looks at what must hold of each.

    metrics_check.py <TEXT [NAME{LABEL=VALUE,...}>=NUMBER]...

Fails where a family has no help or type, a counter no _total, a histogram that is none, a sample that is
there twice; or where no sample of that name and labels has that value at least.
"""
import re
import sys

from prometheus_client.parser import text_string_to_metric_families

text = sys.stdin.read()
samples = {}
for family in text_string_to_metric_families(text):
    if not family.name.startswith("weft_") or not family.documentation or family.type == "unknown":
        sys.exit(f"{family.name}: type {family.type}, help {family.documentation!r}")
    if f"# TYPE {family.name}{'_total' if family.type == 'counter' else ''} {family.type}\n" not in text:
        sys.exit(f"{family.name}: no TYPE line of its own")
    buckets = {}
    for sample in family.samples:
        key = (sample.name, tuple(sorted(sample.labels.items())))
        if key in samples:
            sys.exit(f"{key} is there twice")
        if "volume" not in sample.labels or sample.value < 0:
            sys.exit(f"{key} = {sample.value}")
        samples[key] = sample.value
        if sample.name.endswith("_bucket"):
            rest = tuple(sorted((k, v) for k, v in sample.labels.items() if k != "le"))
            buckets.setdefault(rest, []).append((float(sample.labels["le"]), sample.value))
    for rest, counts in buckets.items():
        values = [count for _, count in sorted(counts)]
        if values != sorted(values) or sorted(counts)[-1][0] != float("inf"):
            sys.exit(f"{family.name}{rest} does not rise to +Inf: {counts}")
        if values[-1] != samples[family.name + "_count", rest] or not samples[family.name + "_sum", rest] > 0:
            sys.exit(f"{family.name}{rest}: count or sum do not fit")
if text.count("# HELP") != len(set(re.findall(r"^# HELP (\S+)", text, re.M))):
    sys.exit("a family is there twice")

for wanted in sys.argv[1:]:
    name, labels, least = re.fullmatch(r"(\w+)(?:\{(.*)\})?>=([\d.]+)", wanted).groups()
    labels = dict(pair.split("=", 1) for pair in labels.split(",")) if labels else {}
    found = [value for (other, has), value in samples.items()
             if other == name and labels.items() <= dict(has).items()]
    if not found or max(found) < float(least):
        sys.exit(f"{wanted}: found {found}")
print(f"{len(samples)} samples")
