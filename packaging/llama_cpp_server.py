"""llama.cpp's server on a model in float32, for the environment of `make test-llama`, which has nothing of this project.

Arguments: a GGUF file, and where the same goes in float32. The address is printed; the end of the input ends the server.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import xllamacpp


def in_float32(source: Path, target: Path) -> None:
    """The same model without quantisation."""
    file = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, file.fields["general.architecture"].contents())
    for field in file.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        of = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        value: Any = 0 if field.name == "general.file_type" else field.contents()
        writer.add_key_value(field.name, value, field.types[0], sub_type=of)
    for tensor in file.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        writer.add_tensor(tensor.name, values.reshape(tuple(reversed(tensor.shape.tolist()))))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def serve(model: Path) -> None:
    """Two slots of 2,048 tokens, KV in float32."""
    params = xllamacpp.CommonParams()
    params.model.path, params.port, params.n_gpu_layers, params.use_jinja = str(model), 0, 0, True
    params.n_ctx, params.n_parallel, params.cpuparams.n_threads = 4096, 2, 2
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.endpoint_slots, params.verbosity = True, 0
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    in_float32(Path(sys.argv[1]), Path(sys.argv[2]))
    serve(Path(sys.argv[2]))
