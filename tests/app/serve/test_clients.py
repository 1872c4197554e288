"""Third-party clients of our server: openai, lm-evaluation-harness and llm, in an environment of their own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.app.serve.conftest import CALL, TOOLS, Served
from tests.pages import PAGES, blocks
from tests.tiny_models import tiny_path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
CLIENTS = Path(__file__).parents[3] / ".cache" / "clients"
PACKAGES = ("openai==3.57.0", "llm==0.36", "lm_eval[api]==0.4.13")
# Messages of uv when the package index cannot be reached; a missing version is another error.
OFFLINE = re.compile(r"failed to fetch|could not connect|dns error|timed out|network was disabled", re.IGNORECASE)
KEY = "no-key-is-checked-here"
NATS = 1e-3
QUESTIONS: list[dict[str, Any]] = [
    {"question": "The module defines", "choices": [" a function", " the class", " an object"], "answer": 1},
    {"question": "This function returns", "choices": [" a string", " None", " the value"], "answer": 0},
    {"question": "Changed in version", "choices": [" 3.2", " 2.7", " the"], "answer": 0},
    {"question": "The following example", "choices": [" shows", " uses", " is"], "answer": 2},
    {"question": "If the argument is", "choices": [" given", " omitted", " not"], "answer": 1},
]


@pytest.fixture(scope="session")
def python() -> Path:
    """A Python with the clients, installed once; skipped if the package index cannot be reached."""
    found = CLIENTS / "bin" / "python"
    done = CLIENTS / "installed"
    if done.exists() and done.read_text() == " ".join(PACKAGES):
        return found
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(CLIENTS)], check=True)
    install = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(found), *PACKAGES]
    installed = subprocess.run(install, capture_output=True, text=True, timeout=600, check=False)
    if installed.returncode:
        reason = f"the clients cannot be installed: {installed.stderr.strip()[-800:]}"
        if OFFLINE.search(installed.stderr):
            pytest.skip(reason)
        pytest.fail(reason)
    done.write_text(" ".join(PACKAGES))
    return found


def run(command: list[str], folder: Path, **environment: str) -> str:
    """The output of a client."""
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environ |= {"OPENAI_API_KEY": KEY, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf"), **environment}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


OPENAI = """
import base64, json, sys
import openai

url, model, tool_answer = sys.argv[1:4]
client = openai.OpenAI(base_url=f"{url}/v1", max_retries=0)
hello = [{"role": "user", "content": "Hello"}]
said = {"models": [each.id for each in client.models.list()]}
made = client.completions.create(model=model, prompt="The", max_tokens=5, seed=1, logprobs=2)
said["text"], said["logprobs"] = made.choices[0].text, made.choices[0].logprobs.token_logprobs
said["streamed"] = "".join(
    chunk.choices[0].text for chunk in client.completions.create(model=model, prompt="The", max_tokens=5, seed=1, stream=True)
)
made = client.chat.completions.create(model=model, messages=hello, max_tokens=5, seed=1, logprobs=True, top_logprobs=3)
said["chat"], said["top"] = made.choices[0].message.content, len(made.choices[0].logprobs.content[0].top_logprobs)
chunks = list(client.chat.completions.create(
    model=model, messages=hello, max_tokens=5, seed=1, stream=True, stream_options={"include_usage": True}
))
said["chat_streamed"] = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
said["usage"] = chunks[-1].usage.completion_tokens
schema = {"name": "age", "schema": {"type": "object", "properties": {"age": {"enum": [7]}}, "required": ["age"],
          "additionalProperties": False}}
made = client.chat.completions.create(
    model=model, messages=hello, max_tokens=60, response_format={"type": "json_schema", "json_schema": schema}
)
said["json"] = json.loads(made.choices[0].message.content)
tools = [{"type": "function", "function": {"name": "double", "parameters": {"type": "object"}}}]
try:
    client.chat.completions.create(model=model, messages=hello, tools=tools, max_tokens=5)
except openai.BadRequestError as refused:
    said["tools"] = refused.message
vectors = client.embeddings.create(model=model, input=["one", "two"])
said["vectors"] = [each.embedding for each in vectors.data]
faults = []
for kind, call in (
    (openai.NotFoundError, lambda: client.completions.create(model="another", prompt="a")),
    (openai.BadRequestError, lambda: client.completions.create(model=model, prompt="a", temperature=-1)),
    (openai.UnsupportedMediaTypeError if hasattr(openai, "UnsupportedMediaTypeError") else openai.APIStatusError,
     lambda: client.post("/completions", cast_to=object, body=None, options={"headers": {"content-type": "text/plain"}})),
):
    try:
        call()
    except kind as fault:
        faults.append(fault.status_code)
said["faults"] = faults
print(json.dumps(said))
"""


def test_the_openai_client(served: Served, python: Path, tmp_path: Path) -> None:
    model = served.model.info.name
    said: dict[str, Any] = json.loads(run([str(python), "-c", OPENAI, served.url, model, ""], tmp_path))
    assert said["models"] == [model]
    assert said["text"] == said["streamed"]
    assert len(said["logprobs"]) == said["usage"] == 5
    assert said["chat"] == said["chat_streamed"]
    assert said["top"] == 3
    assert said["json"] == {"age": 7}
    assert "tools" in said["tools"]  # the tiny model's template has no place for them
    np.testing.assert_allclose(said["vectors"], served.model.embed_sync(["one", "two"]), atol=1e-6)
    assert said["faults"] == [404, 400, 415]


TOOL_CALLS = """
import json, sys
import openai

url, model, tools, call = sys.argv[1:5]
client = openai.OpenAI(base_url=f"{url}/v1", max_retries=0)
messages = [{"role": "user", "content": "Double 21."}]
asked = {"model": model, "tools": json.loads(tools), "max_tokens": 200,
         "extra_body": {"structured_outputs": {"choice": [call]}}}
made = client.chat.completions.create(messages=messages, **asked).choices[0]
(whole,) = made.message.tool_calls
streamed = {"name": "", "arguments": "", "content": ""}
for chunk in client.chat.completions.create(messages=messages, stream=True, **asked):
    (choice,) = chunk.choices
    streamed["content"] += choice.delta.content or ""
    for piece in choice.delta.tool_calls or ():
        assert piece.index == 0
        streamed["name"] += piece.function.name or ""
        streamed["arguments"] += piece.function.arguments or ""
messages += [made.message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": whole.id, "content": "42"}]
del asked["extra_body"], asked["max_tokens"]
answer = client.chat.completions.create(messages=messages, max_tokens=3, extra_body={"ignore_eos": True}, **asked)
demanded = client.chat.completions.create(
    messages=messages, max_tokens=300, tool_choice={"type": "function", "function": {"name": "double"}},
    logit_bias=json.loads(sys.argv[5]), **asked
).choices[0].message.tool_calls[0].function
print(json.dumps({"whole": [whole.function.name, whole.function.arguments, made.message.content, made.finish_reason],
                  "streamed": [*streamed.values(), choice.finish_reason], "completion": answer.usage.completion_tokens,
                  "demanded": [demanded.name, list(json.loads(demanded.arguments))]}))
"""


def test_the_openai_client_s_tool_calls(tooled: Served, python: Path, tmp_path: Path) -> None:
    model = tooled.model
    bias = json.dumps({str(token): 50.0 for text in "}7" for token in model.tokenize(text)})
    given = (tooled.url, model.info.name, json.dumps(TOOLS), f"So: {CALL}", bias)
    said = json.loads(run([str(python), "-c", TOOL_CALLS, *given], tmp_path))
    name, arguments, content, finish = said["whole"]
    assert (name, json.loads(arguments), content, finish) == ("double", {"x": 21}, "So: ", "tool_calls")
    assert said["streamed"] == said["whole"]
    assert said["completion"] == 3
    assert said["demanded"] == ["double", ["x"]]


def test_the_documentation_s_example(served: Served, python: Path, tmp_path: Path) -> None:
    (example,) = blocks(PAGES["docs/server.md"], "py")
    out = run([str(python), "-c", example.replace("http://localhost:8080", served.url)], tmp_path)
    assert "decoded_token" in out


TASK = """
task: choices
dataset_path: json
dataset_kwargs:
  data_files: {{test: {data}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_target: answer
doc_to_choice: choices
target_delimiter: ""
metric_list:
  - metric: acc
"""
CHAT_TASK = """
task: chats
dataset_path: json
dataset_kwargs:
  data_files: {{test: {data}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{choices[answer]}}}}"
generation_kwargs:
  max_gen_toks: 4
  temperature: 0
metric_list:
  - metric: exact_match
"""
HARNESS = """
import json, sys
import lm_eval
from lm_eval.tasks import TaskManager

kind, url, model, task, folder = sys.argv[1:6]
path = "v1/completions" if kind == "local-completions" else "v1/chat/completions"
given = {"base_url": f"{url}/{path}", "model": model, "num_concurrent": 2, "max_retries": 1, "max_length": 512}
if kind == "local-completions":
    given["tokenizer_backend"] = "remote"
found = lm_eval.simple_evaluate(
    model=kind, model_args=given, tasks=[task], task_manager=TaskManager(include_path=folder), batch_size=1,
    apply_chat_template=kind != "local-completions", log_samples=True, bootstrap_iters=0,
)
samples = found["samples"][task]
print("FOUND" + json.dumps({"results": found["results"][task], "responses": [each["resps"] for each in samples]}, default=str))
"""


def harness(served: Served, python: Path, folder: Path, kind: str, task: str) -> dict[str, Any]:
    (folder / "questions.jsonl").write_text("".join(json.dumps(each) + "\n" for each in QUESTIONS))
    (folder / "choices.yaml").write_text(TASK.format(data=folder / "questions.jsonl"))
    (folder / "chats.yaml").write_text(CHAT_TASK.format(data=folder / "questions.jsonl"))
    out = run([str(python), "-c", HARNESS, kind, served.url, served.model.info.name, task, str(folder)], folder)
    found: dict[str, Any] = json.loads(out.rpartition("FOUND")[2])
    return found


def test_the_evaluation_harness_scores_as_transformers_does(served: Served, python: Path, tmp_path: Path, tell: Any) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    found = harness(served, python, tmp_path, "local-completions", "choices")
    reference = AutoModelForCausalLM.from_pretrained(tiny_path("llama"), dtype=torch.float32)
    worst, right = 0.0, 0
    for question, responses in zip(QUESTIONS, found["responses"], strict=True):
        sums = []
        for choice, response in zip(question["choices"], responses, strict=True):
            before, ids = served.model.tokenize(question["question"]), served.model.tokenize(f"{question['question']}{choice}")
            with torch.no_grad():
                rows = torch.log_softmax(reference(torch.tensor([ids])).logits[0].float(), -1)
            sums.append(sum(float(rows[at - 1, ids[at]]) for at in range(len(before), len(ids))))
            worst = max(worst, abs(sums[-1] - float(response[0][0])))
        right += int(np.argmax(sums)) == question["answer"]
    assert worst < NATS
    assert found["results"]["acc,none"] == pytest.approx(right / len(QUESTIONS))
    tell(f"lm-evaluation-harness against transformers: largest difference of a log-likelihood {worst:.1e} nats")


def test_the_evaluation_harness_chats(served: Served, python: Path, tmp_path: Path) -> None:
    found = harness(served, python, tmp_path, "local-chat-completions", "chats")
    assert len(found["responses"]) == len(QUESTIONS)
    for question, responses in zip(QUESTIONS, found["responses"], strict=True):
        messages = [{"role": "user", "content": question["question"]}]
        ours = served.post("/v1/chat/completions", messages=messages, max_tokens=4, temperature=0)
        assert responses[0][0] == ours["choices"][0]["message"]["content"]


@pytest.mark.parametrize("streaming", [True, False])
def test_llm(served: Served, python: Path, tmp_path: Path, streaming: bool) -> None:
    model = served.model.info.name
    entry = f"- model_id: ours\n  model_name: {model}\n  api_base: {served.url}/v1\n"
    (tmp_path / "extra-openai-models.yaml").write_text(entry)
    command = [str(python.with_name("llm")), "-m", "ours", "Hello", "-o", "max_tokens", "6", "-o", "seed", "3"]
    out = run([*command, *([] if streaming else ["--no-stream"])], tmp_path, LLM_USER_PATH=str(tmp_path))
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 6, "seed": 3}
    assert out.strip() == served.post("/v1/chat/completions", **body)["choices"][0]["message"]["content"].strip()
