"""A radix tree over token ids whose edges carry cached keys and values.

A path is a list of spans `(namespace, ids)`; the namespace identifies the weights behind the KV (fingerprint, adapters), so
the same tokens under two adapters share nothing. Payloads are opaque: the backend's `PayloadOps` splits and weighs them.
The idea of a radix tree as prefix cache is SGLang's RadixAttention; leases, the logical clock and byte accounting are ours.

Pure Python and numpy, iterative throughout; used by the engine's owner thread alone.
"""

from runtime.trie.eviction_log import EvictionLog, Lost
from runtime.trie.tree import Inserted, Lease, Namespace, Node, PayloadOps, Span, Trie, Weight

__all__ = ["EvictionLog", "Inserted", "Lease", "Lost", "Namespace", "Node", "PayloadOps", "Span", "Trie", "Weight"]
