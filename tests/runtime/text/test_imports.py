from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = """
import sys
from runtime.shelf import embedded, model_shelf, source
from runtime.text import chat, template, tokenizer, utf8
from tests.runtime.loading.gguf_files import small_llama
import pathlib, tempfile, os
with tempfile.TemporaryDirectory() as folder:
    os.environ["ELSEWISE_MODELS"] = folder
    model = source.resolve(small_llama().write(pathlib.Path(folder) / "x.gguf"))
    words = tokenizer.Tokenizer.from_folder(model)
    chat_template = template.ChatTemplate.from_folder(model, words)
    assert chat.render_chat_ids(words, chat_template, [{"role": "user", "content": "hello <|im_end|>"}])
    chat_template.close()
print(sorted({name.partition(".")[0] for name in sys.modules} & {"torch", "mlx", "mlx_lm", "transformers", "huggingface_hub"}))
"""


@pytest.mark.slow
def test_loading_and_rendering_import_no_model_library() -> None:
    done = subprocess.run([sys.executable, "-c", HEAVY], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
