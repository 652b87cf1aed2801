"""kcat at a cluster: `kcat.py SERVERS NAME`; ends with `done`."""

from __future__ import annotations

import json
import subprocess
import sys

servers, name = sys.argv[1], sys.argv[2]


def said(*arguments: str, given: str = "") -> str:
    done = subprocess.run(
        ["kcat", "-b", servers, *arguments], input=given, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def main() -> None:
    for codec in ("none", "gzip", "snappy", "lz4"):
        topic = f"{name}-{codec}"
        said("-t", topic, "-P", "-z", codec, "-X", "enable.idempotence=true", given="one\ntwo\n")
        assert said("-t", topic, "-C", "-e", "-q") == "one\ntwo\n"
        assert said("-t", topic, "-C", "-e", "-q", "-o", "1", "-f", "%o:%s\n") == "1:two\n"
    known = json.loads(said("-L", "-J"))
    topics = {each["topic"]: each["partitions"] for each in known["topics"]}
    assert len(known["brokers"]) == 3 and len(topics[f"{name}-none"]) == 1
    assert said("-G", f"{name}-group", "-c", "2", "-q", "-X", "auto.offset.reset=earliest", f"{name}-gzip")
    assert said("-Q", "-t", f"{name}-gzip:0:-1").split()[-1] == "2"
    print("done")


main()
