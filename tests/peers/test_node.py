"""OpenAI's client for Node: its tests are in node/, run by Node's own runner."""

import os
import shutil
import subprocess
from pathlib import Path

NODE = Path(__file__).with_name("node")


def run(name, gateway):
    """All tests of a file, against this gateway."""
    node = os.environ.get("NODE") or shutil.which("node")
    assert node, "there is no node on the path; NODE=… names one"
    words = [node, "--test", str(NODE / name)]
    environment = os.environ | {
        "WARMLANE_URL": gateway.url,
        "WARMLANE_KEY": gateway.key,
        "WARMLANE_MODEL": gateway.model,
    }
    done = subprocess.run(words, check=False, env=environment, capture_output=True, text=True, timeout=150)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_call(gateway):
    """Chats, tools, schemas, responses, vectors, errors, aborts."""
    run("openai.test.mjs", gateway)


def test_the_demo_model(demo):
    """The real one."""
    run("demo.test.mjs", demo)
