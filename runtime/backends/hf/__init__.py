"""The torch and transformers backend; its modules import them, so they load on first use.

On Linux, torch takes tensors from 2 MiB on from huge pages: the first 3,000 tokens after a load cause 80,000 page faults in
place of 400,000, which took 6 % of their time (SmolLM2). The user's own setting stays.
"""

import os

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # torch reads it once, before its first tensor
